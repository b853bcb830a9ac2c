from __future__ import annotations

from penstock.postgres.timeline import end_of_record, parse_history


def test_a_history_file_gives_the_switch_points() -> None:
    content = "1\t0/3000110\tno recovery target specified\n\n2\t16/B374D848\tbefore 2026-11-15 19:42\n"
    assert parse_history(content) == {1: 0x3000110, 2: 0x16_B374D848}


def test_comments_and_blank_lines_mean_nothing() -> None:
    assert parse_history("# a comment\n\n") == {}


def test_the_header_of_a_new_page_is_of_no_record() -> None:
    assert [end_of_record(lsn) for lsn in (8192 + 24, 8192 * 2048 + 40, 8192, 8192 + 32)] == [
        8192,
        8192 * 2048,
        8192,
        8192 + 32,
    ]

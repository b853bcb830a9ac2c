"""The table that `penstock bench` prints and keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.bench import shapes_app
from penstock.bench.parts import LEAST
from penstock.bench.table import Row, print_table, seconds_of, verdict, write_markdown
from penstock.errors import PenstockError

ROWS = [
    Row("rows/s", "1,000", "", None),
    Row("ratio", "0.90", "≥ 0.8", True),
    Row("lag [p50]", "31.0 s", "≤ 25 s", False),
]


def test_the_verdict_counts_targets_and_names_those_that_were_missed() -> None:
    assert verdict(ROWS) == "1 of 2 targets were reached. Missed: lag [p50]"
    assert verdict(ROWS[:2]) == "1 of 1 targets were reached"


def test_the_printed_table_says_what_was_reached(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(ROWS)

    printed = capsys.readouterr().out
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines() if "│" in line]
    assert lines == [
        ["rows/s", "1,000", "", ""],
        ["ratio", "0.90", "≥ 0.8", "reached"],
        ["lag [p50]", "31.0 s", "≤ 25 s", "missed"],
    ]


def test_the_markdown_has_the_same(tmp_path: Path) -> None:
    write_markdown(tmp_path / "table.md", ROWS)

    text = (tmp_path / "table.md").read_text()
    assert text.endswith("| ratio | 0.90 | ≥ 0.8 | reached |\n| lag [p50] | 31.0 s | ≤ 25 s | missed |\n")


def test_seconds_are_told_with_their_spread() -> None:
    assert seconds_of([3.0, 1.0, 2.25]) == "2.25 s (1.00 to 3.00)"


@pytest.mark.parametrize(("rows", "code"), [(ROWS[:2], 0), (ROWS, 1)])
def test_the_exit_code_says_whether_all_targets_were_reached(
    rows: list[Row], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shapes_app, "collector_speed", lambda: rows)

    assert shapes_app.bench_shapes(LEAST, ["collector"], None) == code
    assert capsys.readouterr().out.endswith(f"{verdict(rows)}\n")


def test_a_part_that_fails_is_a_missed_target(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def failing() -> list[Row]:
        raise PenstockError("penstock ended (2) before 3 snapshots:\na page of its log")

    monkeypatch.setattr(shapes_app, "collector_speed", failing)

    assert shapes_app.bench_shapes(LEAST, ["collector"], tmp_path / "table.md") == 1
    kept = (tmp_path / "table.md").read_text()
    assert "| collector | failed: penstock ended (2) before 3 snapshots: |  | missed |" in kept
    assert "a page of its log" in capsys.readouterr().err

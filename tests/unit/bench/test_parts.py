"""Which parts of `penstock bench shapes` are measured, and how much of each."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import cli, exit_codes
from penstock.bench.parts import LEAST, PARTS, parse_parts, wrong_size
from penstock.cli_arguments import new_parser


def options(*arguments: str) -> dict[str, Any]:
    return vars(new_parser().parse_args(["bench", "shapes", *arguments]))


def test_parts_come_in_their_own_order_and_once() -> None:
    assert parse_parts("many, age,backlog,age") == ("backlog", "age", "many")


@pytest.mark.parametrize("text", ["", "age,", "ages", "Age"])
def test_what_is_no_part_is_named(text: str) -> None:
    wrong = repr(text.rpartition(",")[2])
    with pytest.raises(ValueError, match=f"^{wrong} is not one of collector, backlog, "):
        parse_parts(text)


def test_without_options_all_is_measured() -> None:
    found = options()

    assert found["only"] == tuple(PARTS)
    assert (found["rows"], found["shapes"], found["seconds"]) == (1_000_000, 100, 180)


def test_options_choose_parts_and_sizes() -> None:
    found = options("--only", "verify,wide", "--rows", "5000", "--shapes", "0")

    assert (found["only"], found["rows"], found["shapes"]) == (("verify", "wide"), 5000, 0)


def test_a_part_that_is_none_ends_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options("--only", "age,speed")

    assert "--only: 'speed' is not one of collector, " in capsys.readouterr().err


def test_help_names_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options("--help")

    told = capsys.readouterr().out
    assert [part for part in PARTS if f"  {part}  " not in f"{told} "] == []


def test_sizes_that_tell_nothing_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert wrong_size(LEAST) is None
    assert wrong_size(LEAST._replace(shapes=0)) is None
    assert wrong_size(LEAST._replace(shapes=1)) == "--shapes is 1. Fix: give it 2 or more"

    assert cli.main(["bench", "shapes", "--rounds", "0"]) == exit_codes.BAD_INPUT
    assert capsys.readouterr().err == "--rounds is 0. Fix: give it 1 or more\n"


def test_every_size_has_an_option() -> None:
    assert set(LEAST._fields) <= set(options())

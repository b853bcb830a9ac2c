"""The command line itself: help that is true, errors on one line, codes that mean something."""

from __future__ import annotations

import argparse
import io
import re
import shlex
from pathlib import Path
from typing import NoReturn

import pytest

from penstock import cli, exit_codes
from penstock.cli_arguments import new_parser
from penstock.cli_help import HELP
from penstock.completion import describe
from penstock.errors import PenstockError
from penstock.settings.kinds import Group
from penstock.settings.services import CaptureSettings, ShapesSettings
from penstock.terminal import wants_colour

NOT_OURS = re.compile(r"(PG[A-Z]+|NO_COLOR)")
OPERATIONS = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()


def settings_of(root: type[Group]) -> set[str]:
    groups = [field.annotation for field in root.model_fields.values()]
    return {str(field.validation_alias) for group in groups for field in group.model_fields.values()}  # type: ignore[union-attr]


@pytest.mark.parametrize("command", HELP)
def test_examples_can_be_typed(command: str) -> None:
    for line, what in HELP[command].examples:
        words = shlex.split(re.split(r" >+ ", line)[0])
        assert words[: len(command.split())] == command.split()
        assert what
        assert new_parser().parse_args(words).command == words[0]


@pytest.mark.parametrize("command", HELP)
def test_variables_exist(command: str) -> None:
    known = settings_of(CaptureSettings) | settings_of(ShapesSettings)
    named = {name for names, _ in HELP[command].variables for name in re.findall(r"[A-Z][A-Z0-9_]+", names)}
    assert not {name for name in named if not NOT_OURS.fullmatch(name)} - known


EVERY_COMMAND = [command.path for command in describe(new_parser()).all()]


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(EVERY_COMMAND) == HELP.keys()
    for command in EVERY_COMMAND:
        with pytest.raises(SystemExit) as end:
            cli.main([*command.split(), "--help"])
        assert end.value.code == 0
        text = capsys.readouterr().out
        assert f"examples:\n  penstock {command}" in text
        assert "exit codes:\n  0  " in text
        assert "--verbose" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "penstock: the following arguments are required: COMMAND. Fix: see penstock --help"),
        (
            "bench",
            "penstock bench: the following arguments are required: WHAT. Fix: see penstock bench --help",
        ),
        ("check --so", "penstock: unrecognized arguments: --so. Fix: see penstock --help"),
        (
            "demo --seconds 1",
            "penstock demo: argument --seconds: '1' is not a whole number from 4 to 60."
            " Fix: see penstock demo --help",
        ),
    ],
)
def test_a_wrong_argument_is_a_line(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(words.split())
    assert end.value.code == exit_codes.BAD_INPUT
    assert capsys.readouterr() == ("", f"{said}\n")


def test_exit_codes_are_documented() -> None:
    codes = [value for name, value in vars(exit_codes).items() if name.isupper() and isinstance(value, int)]
    assert sorted(codes) == sorted(exit_codes.MEANINGS)
    for code in codes:
        assert re.search(rf"^\| {code} \|", OPERATIONS, re.MULTILINE), code


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0
    assert re.fullmatch(r"penstock \d+\.\d+\.\d+ \(Python 3\.\d+\.\d+\)\n", capsys.readouterr().out)


def broken(error: Exception) -> type[argparse.Namespace]:
    """A command that fails like this."""

    def run(arguments: argparse.Namespace) -> NoReturn:
        raise error

    return run  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("words", "error", "code", "said", "has_traceback"),
    [
        (["check"], PenstockError("no. Fix: yes"), 2, r"no\. Fix: yes\n", False),
        (["check", "--verbose"], PenstockError("no. Fix: yes"), 2, r"no\. Fix: yes\n", True),
        (["--verbose", "check"], PenstockError("no. Fix: yes"), 2, r"no\. Fix: yes\n", True),
        (["check"], KeyError("a\nb"), 70, r"a defect of Penstock: KeyError: .*\. Fix: .*--verbose\n", False),
        (["check", "--verbose"], KeyError("a"), 70, r"a defect of Penstock: KeyError: .*\n", True),
        (["capture"], KeyError("a"), 70, r"a defect of Penstock: KeyError: .*\n", True),
        (["check"], KeyboardInterrupt(), 130, "", False),
    ],
)
def test_an_error_is_a_line(
    words: list[str],
    error: Exception,
    code: int,
    said: str,
    has_traceback: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for command in ("_check", "_capture"):
        monkeypatch.setattr(cli, command, broken(error))

    assert cli.main(words) == code

    printed = capsys.readouterr()
    assert printed.out == ""
    assert ("Traceback" in printed.err) == has_traceback
    last = printed.err if not has_traceback else printed.err.splitlines(keepends=True)[-1]
    assert re.fullmatch(said, last)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environ", "wanted"),
    [
        (Terminal(), {}, True),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"NO_COLOR": ""}, True),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {}, False),
    ],
)
def test_colours(stream: io.StringIO, environ: dict[str, str], wanted: bool) -> None:
    assert wants_colour(stream, environ) == wanted

"""Shell completion: what each shell itself makes of the script."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from penstock.cli_arguments import new_parser
from penstock.completion import SHELLS, Command, describe

PROGRAM = describe(new_parser())


def bash_completes(*words: str, directory: Path | None = None) -> list[str]:
    """What bash offers for the last of the words."""
    line = " ".join(f"'{word}'" for word in words)
    script = f"{SHELLS['bash'](PROGRAM)}\nCOMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _penstock\n"
    done = subprocess.run(
        ["bash", "--norc", "-c", script + 'printf "%s\\n" "${COMPREPLY[@]}"'],
        cwd=directory,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        pytest.param(("penstock", "ch"), ["check"], id="a command"),
        pytest.param(("penstock", "--ver"), ["--version", "--verbose"], id="an option of the program"),
        pytest.param(("penstock", "--verbose", "sta"), ["status"], id="a command behind an option"),
        pytest.param(("penstock", "shapes", "--o"), ["--once"], id="an option"),
        pytest.param(("penstock", "bench", "s"), ["shapes"], id="a command of a command"),
        pytest.param(("penstock", "bench", "shapes", "--on"), ["--only"], id="its option, not another's"),
        pytest.param(("penstock", "completion", "f"), ["fish"], id="a choice"),
        pytest.param(("penstock", "status", "--url", "h"), [], id="a value that nobody knows"),
    ],
)
def test_bash_offers(words: tuple[str, ...], offered: list[str]) -> None:
    assert bash_completes(*words) == offered


def test_bash_offers_files(tmp_path: Path) -> None:
    (tmp_path / "shapes.toml").touch()
    assert bash_completes("penstock", "check", "--config", "sh", directory=tmp_path) == ["shapes.toml"]


def test_every_command_is_offered() -> None:
    offered = bash_completes("penstock", "")
    assert set(offered) >= {command.words[-1] for command in PROGRAM.commands}


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_take_the_script(shell: str) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run(
        [program, "-n"], input=SHELLS[shell](PROGRAM), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("shell", SHELLS)
def test_every_long_option_is_in_the_script(shell: str) -> None:
    script = SHELLS[shell](PROGRAM)

    def options(command: Command) -> list[str]:
        return [flag for each in command.all() for option in each.options for flag in option.flags]

    for flag in {flag for flag in options(PROGRAM) if flag.startswith("--")}:
        assert flag.removeprefix("--") in script

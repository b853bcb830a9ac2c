"""Commands in docs, taken apart and held against what is really there."""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Final, NamedTuple

from penstock.cli_arguments import new_parser
from tests.markdown_pages import ROOT

OTHERS: Final = frozenset(
    {
        ".",
        "apt-get",
        "aws",
        "base64",
        "buildah",
        "cat",
        "cd",
        "chmod",
        "cp",
        "curl",
        "docker",
        "echo",
        "git",
        "grep",
        "head",
        "install",
        "jq",
        "kill",
        "kubectl",
        "ls",
        "mkdir",
        "moto_server",
        "openssl",
        "podman",
        "printf",
        "promtool",
        "psql",
        "sed",
        "skopeo",
        "sleep",
        "sudo",
        "systemctl",
        "tail",
        "tar",
        "tee",
        "terraform",
        "tofu",
        "tr",
        "xdg-open",
    }
)
"""Programs that aren't ours: of these only the paths in our repository are looked at."""
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)=")
_TARGET: Final = re.compile(r"^([a-z][a-z-]*):", re.MULTILINE)
_EXTRAS: Final = re.compile(r"(?:penstock|\.)\[([\w,]+)\]")


class Command(NamedTuple):
    """One program with its arguments, and the variables that are set for it."""

    variables: list[str]
    words: list[str]


def simple_commands(line: str) -> list[Command]:
    """The programs of one line, which may be joined by && ; and pipes; comments are left out."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    commands: list[Command] = []
    words: list[str] = []
    into_file = False
    for word in [*lexer, ";"]:
        if into_file:
            into_file = False
        elif word in (">", ">>", "<"):
            into_file = True
        elif set(word) <= set("();|&"):
            commands += [_command(words)] if words else []
            words = []
        else:
            words.append(word)
    return commands


def _command(words: Sequence[str]) -> Command:
    exports = words[0] == "export"
    rest = list(words[1:] if exports else words)
    variables = []
    while rest and (found := _ASSIGNMENT.match(rest[0])):
        variables.append(found[1])
        rest.pop(0)
    return Command(variables, rest)


def complaint(command: Command) -> str | None:
    """What is wrong with a command; None if nothing is."""
    if not command.words:
        return None
    program, *arguments = command.words
    program = program.removeprefix(".venv/bin/")
    check = _CHECKS.get(program)
    if check is not None:
        return check(arguments)
    known = program in OTHERS or program.startswith("$SPARK/bin/") or (ROOT / program).exists()
    if not known:
        return f"{program}: teach tests/shell_commands.py how to check it"
    missing = [word for word in arguments if _is_ours(word) and not (ROOT / word).exists()]
    return f"not in the repository: {', '.join(missing)}" if missing else None


def _is_ours(word: str) -> bool:
    return re.match(r"(deploy|docs|scripts|src|tests)/", word) is not None


def _penstock(arguments: Sequence[str]) -> str | None:
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
            new_parser().parse_args(arguments)
    except SystemExit as end:
        return errors.getvalue() if end.code else None
    return None


def _make(arguments: Sequence[str]) -> str | None:
    targets = set(_TARGET.findall((ROOT / "Makefile").read_text()))
    wanted = {word for word in arguments if not _ASSIGNMENT.match(word)}
    return f"no such target: {', '.join(wanted - targets)}" if wanted - targets else None


def _python(arguments: Sequence[str]) -> str | None:
    if arguments[:1] != ["-m"]:
        return None
    module = arguments[1]
    return None if module in ("venv", "http.server") or find_spec(module) else f"no module {module}"


def _pip(arguments: Sequence[str]) -> str | None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {extra for word in arguments for extras in _EXTRAS.findall(word) for extra in extras.split(",")}
    unknown = named - set(project["optional-dependencies"])
    return f"no such extra: {', '.join(unknown)}" if unknown else None


_CHECKS: Final[Mapping[str, Callable[[Sequence[str]], str | None]]] = {
    "penstock": _penstock,
    "make": _make,
    "python": _python,
    "python3": _python,
    "pip": _pip,
}


def mention_complaint(mention: str) -> str | None:
    """What is wrong with `penstock shapes --once` in a sentence, where required arguments may be left out."""
    words = mention.split()
    if words[0] == "make":
        return _make(words[1:2])
    parser = new_parser()
    for word in words[1:]:
        if word.startswith("-"):
            option = word.partition("=")[0]
            if option not in parser._option_string_actions:
                return f"{parser.prog} has no {option}"
        elif (parts := _parts(parser)) is not None:
            if word not in parts:
                return f"{parser.prog} has no {word}"
            parser = parts[word]
    return None


def _parts(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser] | None:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return action.choices
    return None

"""Shell completion: scripts for bash, zsh and fish, made from the commands' own arguments.

A dependency would do no more: our arguments are words, files and a few choices.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple


class Option(NamedTuple):
    """An option of a command, or (without flags) an argument."""

    flags: tuple[str, ...]
    help: str
    takes_value: bool
    is_file: bool
    choices: tuple[str, ...]


class Command(NamedTuple):
    """A command by its words, such as `bench shapes`; the program itself has none."""

    words: tuple[str, ...]
    help: str
    options: tuple[Option, ...]
    commands: tuple[Command, ...]

    @property
    def path(self) -> str:
        """The words."""
        return " ".join(self.words)

    def all(self) -> Iterator[Command]:
        """Itself, and what is below it."""
        yield self
        for command in self.commands:
            yield from command.all()


def describe(parser: argparse.ArgumentParser, words: tuple[str, ...] = (), what: str = "") -> Command:
    """What can be written behind the program's name."""
    options: list[Option] = []
    commands: list[Command] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            commands += [describe(sub, (*words, name), helps[name]) for name, sub in action.choices.items()]
        else:
            options.append(_option(action))
    return Command(words, what, tuple(options), tuple(commands))


def bash(program: Command) -> str:
    """A script for bash: `source <(penstock completion bash)`."""
    steps = "|".join(f'"{_step(command)}"' for command in program.all() if command.words)
    places: dict[str, list[str]] = {}
    for command in program.all():
        for option in command.options:
            if option.takes_value:
                flags = [_quoted(f"{command.path} {flag}") for flag in option.flags]
                places.setdefault(_bash_values(option), []).extend(flags)
    values = [f"        {'|'.join(flags)}) {what}; return ;;" for what, flags in places.items() if flags]
    words = [f'        "{command.path}") words="{" ".join(_words(command))}" ;;' for command in program.all()]
    return "\n".join(
        [
            "_penstock() {",
            '    local current="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"',
            '    local path="" words="" index',
            "    for ((index = 1; index < COMP_CWORD; index++)); do",
            '        case "$path ${COMP_WORDS[index]}" in',
            f'            {steps}) path="${{path:+$path }}${{COMP_WORDS[index]}}" ;;',
            "        esac",
            "    done",
            '    case "$path $before" in',
            *values,
            "    esac",
            '    case "$path" in',
            *words,
            "    esac",
            '    COMPREPLY=($(compgen -W "$words" -- "$current"))',
            "}",
            "complete -F _penstock penstock",
            "",
        ]
    )


def zsh(program: Command) -> str:
    """A script for zsh: a file `_penstock` in a directory of `$fpath`, or sourced after `compinit`."""
    functions = [line for command in program.all() for line in _zsh_function(command)]
    ending = 'if [ "$funcstack[1]" = _penstock ]; then _penstock "$@"; else compdef _penstock penstock; fi'
    return "\n".join(["#compdef penstock", *functions, ending, ""])


def fish(program: Command) -> str:
    """A script for fish: `penstock completion fish | source`."""
    steps = " ".join(_quoted(_step(command)) for command in program.all() if command.words)
    lines = [
        "function __penstock_at",
        "    set -l path ''",
        "    for word in (commandline -opc)[2..-1]",
        f'        if contains -- "$path $word" {steps}',
        '            set path (string trim -- "$path $word")',
        "        end",
        "    end",
        '    test "$path" = "$argv[1]"',
        "end",
        "complete -c penstock -f",
    ]
    for command in program.all():
        here = f"complete -c penstock -n '__penstock_at {_fish_quoted(command.path)}'"
        lines += [f"{here} -a {below.words[-1]} -d {_fish_quoted(below.help)}" for below in command.commands]
        lines += [line for option in command.options for line in _fish_option(here, option)]
    return "\n".join([*lines, ""])


SHELLS: Final = {"bash": bash, "zsh": zsh, "fish": fish}


def _option(action: argparse.Action) -> Option:
    choices = tuple(str(choice) for choice in action.choices or ())
    text = "" if action.help in (None, argparse.SUPPRESS) else str(action.help)
    # A value that may be left out is a number, which nobody can complete.
    takes_value = action.nargs not in (0, argparse.OPTIONAL)
    return Option(tuple(action.option_strings), text, takes_value, action.type is Path, choices)


def _step(command: Command) -> str:
    """The words up to the last, a space, and the last."""
    return f"{' '.join(command.words[:-1])} {command.words[-1]}"


def _words(command: Command) -> Sequence[str]:
    flags = [flag for option in command.options for flag in option.flags if flag.startswith("--")]
    places = [choice for option in command.options if not option.flags for choice in option.choices]
    return [*(below.words[-1] for below in command.commands), *places, *flags]


def _bash_values(option: Option) -> str:
    if option.is_file:
        return 'compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- "$current"))'
    return f'COMPREPLY=($(compgen -W "{" ".join(option.choices)}" -- "$current"))'


def _zsh_function(command: Command) -> Iterator[str]:
    yield f"{_zsh_name(command)}() {{"
    yield "    local line state"
    yield "    _arguments -C \\"
    for option in command.options:
        value = ""
        if option.takes_value:
            what = "_files" if option.is_file else f"({' '.join(option.choices)})" if option.choices else " "
            value = f":{'file' if option.is_file else 'value'}:{what}"
        if not option.flags:
            yield f"        {_quoted(f'1{value}')} \\"
        for flag in option.flags:
            yield f"        {_quoted(f'{flag}[{_zsh_text(option.help)}]{value}')} \\"
    if not command.commands:
        yield "        && return 0"
    else:
        names = " ".join(f'{below.words[-1]}\\:"{_zsh_text(below.help)}"' for below in command.commands)
        yield f"        {_quoted(f'1:command:(({names}))')} \\"
        yield "        '*::argument:->arguments'"
        yield "    case $line[1] in"
        for below in command.commands:
            yield f"        {below.words[-1]}) {_zsh_name(below)} ;;"
        yield "    esac"
    yield "}"


def _zsh_name(command: Command) -> str:
    return "_".join(["_penstock", *command.words])


def _zsh_text(text: str) -> str:
    for special in ("\\", "[", "]", ":", '"', "`", "$", "'"):
        text = text.replace(special, {":": "\\:", "[": "(", "]": ")", "'": "’"}.get(special, ""))
    return text


def _fish_option(here: str, option: Option) -> Iterator[str]:
    if not option.flags:
        yield f"{here} -a {_fish_quoted(' '.join(option.choices))}"
        return
    names = " ".join(
        f"-l {flag.removeprefix('--')}" if flag.startswith("--") else f"-s {flag.removeprefix('-')}"
        for flag in option.flags
    )
    value = ""
    if option.takes_value:
        value = " -r -F" if option.is_file else f" -x -a {_fish_quoted(' '.join(option.choices))}"
    yield f"{here} {names}{value} -d {_fish_quoted(option.help)}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _fish_quoted(text: str) -> str:
    return '"' + "".join(f"\\{each}" if each in '\\"$' else each for each in text.replace("'", "’")) + '"'

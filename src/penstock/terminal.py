"""What a terminal may be sent."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TextIO


def wants_colour(stream: TextIO, environ: Mapping[str, str] | None = None) -> bool:
    """Whether colours are welcome there: it is a terminal, not a dumb one, and NO_COLOR is not set."""
    variables = os.environ if environ is None else environ
    return stream.isatty() and not variables.get("NO_COLOR") and variables.get("TERM") != "dumb"


def painted(text: str, code: str, *, colour: bool) -> str:
    """The text in a colour, by its ANSI code, or as it is."""
    return f"\033[{code}m{text}\033[0m" if colour else text

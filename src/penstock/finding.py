"""Findings: what `penstock check` has to say, as data and as lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple, Self

from penstock.errors import PenstockError

_FIX: Final = " Fix: "
_COLOURS: Final = {"ok": "32", "warn": "33", "fail": "1;31"}


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    """Nothing to do."""
    WARN = "warn"
    """Capture runs; somebody should know this."""
    FAIL = "fail"
    """Capture can't run, or loses changes, until it is fixed."""


class Finding(NamedTuple):
    """One thing that was looked at. Holds no row values and no secrets."""

    level: Level
    subject: str
    found: str
    fix: str = ""

    @classmethod
    def ok(cls, subject: str, found: str, fix: str = "") -> Self:
        """As it should be; `fix` is advice here."""
        return cls(Level.OK, subject, found, fix)

    @classmethod
    def warn(cls, subject: str, found: str, fix: str = "") -> Self:
        """Legal and doubtful."""
        return cls(Level.WARN, subject, found, fix)

    @classmethod
    def fail(cls, subject: str, found: str, fix: str = "") -> Self:
        """In the way."""
        return cls(Level.FAIL, subject, found, fix)

    @classmethod
    def from_error(cls, subject: str, error: PenstockError) -> Self:
        """A failure, from the sentence that capture itself would say."""
        found, _, fix = str(error).partition(_FIX)
        return cls.fail(subject, found.removesuffix("."), fix)


def worst(findings: Iterable[Finding]) -> Level:
    """The worst level among findings; ok if there are none."""
    order = list(Level)
    return max((finding.level for finding in findings), key=order.index, default=Level.OK)


def as_text(findings: Sequence[Finding], *, colour: bool = False) -> str:
    """A line for each finding, and a line that counts them."""
    width = max((len(finding.subject) for finding in findings), default=0)
    lines = [_line(finding, width, colour=colour) for finding in findings]
    counts = {level: sum(finding.level is level for finding in findings) for level in Level}
    total = f"{len(findings)} findings: " + ", ".join(f"{count} {level}" for level, count in counts.items())
    return "\n".join([*lines, "", total])


def as_json(findings: Sequence[Finding]) -> str:
    """The same as a JSON list."""
    return json.dumps([finding._asdict() for finding in findings], indent=2, ensure_ascii=False)


def _line(finding: Finding, width: int, *, colour: bool) -> str:
    mark = f"{finding.level:<4}"
    if colour:
        mark = f"\033[{_COLOURS[finding.level]}m{mark}\033[0m"
    label = "Note" if finding.level is Level.OK else "Fix"
    advice = f". {label}: {finding.fix}" if finding.fix else ""
    return f"{mark}  {finding.subject:<{width}}  {finding.found}{advice}"

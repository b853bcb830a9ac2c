"""LSNs: WAL byte positions, `int` in code, `16/B374D848` for people."""

from __future__ import annotations

import re

_LSN = re.compile(r"\A[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}\Z")


def parse_lsn(text: str) -> int:
    """Read `16/B374D848` as an integer; ValueError for anything else."""
    if not _LSN.match(text):
        raise ValueError(f"not an LSN: {text!r} (expected hexadecimal/hexadecimal, such as 16/B374D848)")
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


def format_lsn(lsn: int) -> str:
    """Write an LSN the way Postgres does."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"

"""Sizes, for people."""

from __future__ import annotations


def format_size(count: float) -> str:
    """A number of bytes, with the units that Postgres uses: 1 kB is 1024 bytes."""
    for unit, bytes_each in (("TB", 1 << 40), ("GB", 1 << 30), ("MB", 1 << 20), ("kB", 1 << 10)):
        if count >= bytes_each:
            return f"{count / bytes_each:.1f} {unit}"
    return f"{count:.0f} B"

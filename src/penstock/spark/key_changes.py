"""Key changes that leave columns out: where each missing value stands.

`UPDATE t SET id = 10` doesn't carry an unchanged TOAST column, so the insert half of the change lacks it. The
value is in the old key's row: in an earlier change of the batch, or in the table, or, where that row had
itself come by a key change, further back. This follows positions and names only, never values; those are
fetched by inheritance.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.log_offset import LogOffset


class Event(NamedTuple):
    """What a change does to a row, without its values."""

    at: LogOffset
    action: str
    key: str
    """Equal for equal keys; otherwise of no meaning."""
    old_key: str | None = None
    """Of the insert half of a key change: the key that the delete half, just before it, removed."""
    absent: frozenset[str] = frozenset()


class Source(NamedTuple):
    """Where a value stands: in the change at `at`; or in the table, in the row of that change's old key."""

    at: LogOffset
    in_table: bool


class _Row:
    """A row as the batch knows it: where its columns stand. Those not named are in the table, or null."""

    def __init__(self, sources: dict[str, Source], *, in_table: bool) -> None:
        self.sources = sources
        self.in_table = in_table


def find_sources(events: Iterable[Event], columns: Sequence[str]) -> dict[LogOffset, dict[str, Source]]:
    """For each key change with absent columns, the source of each of these; a column without one is null.

    `events` are in order and hold at least those changes and every change of their old keys.
    """
    rows: dict[str, _Row] = {}
    removed: dict[str, _Row] = {}
    found: dict[LogOffset, dict[str, Source]] = {}
    for event in events:
        carried = {name: Source(event.at, False) for name in columns if name not in event.absent}
        if event.action == "update":
            rows.setdefault(event.key, _Row({}, in_table=True)).sources.update(carried)
        elif event.action == "delete":
            removed[event.key] = rows.pop(event.key, _Row({}, in_table=True))
        elif event.old_key is None or not event.absent:
            rows[event.key] = _Row(carried, in_table=False)
        else:
            inherited = _inherited(event, removed.pop(event.old_key))
            found[event.at] = inherited
            rows[event.key] = _Row(carried | inherited, in_table=False)
    return found


def _inherited(event: Event, old: _Row) -> dict[str, Source]:
    sources = {name: old.sources[name] for name in event.absent if name in old.sources}
    if old.in_table:
        sources |= {name: Source(event.at, True) for name in event.absent if name not in sources}
    return sources

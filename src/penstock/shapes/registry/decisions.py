"""What a start does with each shape, decided from the registry, the server and the tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import structs

from penstock.model.log_offset import LogOffset
from penstock.model.lsn import format_lsn
from penstock.model.shape import Shape, definition_hash
from penstock.model.snapshot_again import SnapshotAgain
from penstock.shapes.registry.registry import Registry, ShapeEntry


class ServerFacts(NamedTuple):
    """The server and the slot, read by the lock's holder."""

    system_id: str
    timeline: int
    switch_points: Mapping[int, int]
    """TIMELINE_HISTORY of the current timeline: for each one before it, the LSN at which it was left."""
    slot: str
    confirmed_flush_lsn: int | None
    """None: the slot is missing."""
    flush_lsn: int
    """How far the server's WAL goes; read after the tables' offsets."""


class Continue(NamedTuple):
    """The shape goes on from its table."""

    shape: str
    offset: LogOffset


class Refuse(NamedTuple):
    """Nothing starts until somebody acts."""

    shape: str
    sentence: str


Action = Continue | SnapshotAgain | Refuse


class Decision(NamedTuple):
    """What to do at a start, one action a shape of the file."""

    actions: tuple[Action, ...]
    registry: Registry | None
    """To be written before anything is done; None if something is refused."""


def needed_lsn(actions: Iterable[Action], ceiling_lsn: int) -> int | None:
    """Where the first table that goes on needs changes from; None if none does.

    The registry's ceiling says of all of them that they have everything below it, also of those whose tables
    were not written for long.
    """
    offsets = [action.offset for action in actions if isinstance(action, Continue)]
    if not offsets:
        return None
    return max(min(offset.tx_offset for offset in offsets) + 1, ceiling_lsn)


def decide(
    registry: Registry | None,
    server: ServerFacts,
    shapes: Sequence[Shape],
    offsets: Mapping[str, LogOffset | None],
) -> Decision:
    """Which tables may go on, and which must be rebuilt.

    `offsets` has the tables that exist; None for one that holds no offset of ours under this system id.

    1. Another system id, a lower timeline: all are refused.
    2. On a higher timeline only what was committed before the switch point of the registry's timeline is
       common to both. A commit record that begins *at* that point was never in the new history.
    3. The slot has to begin at or below the ceiling, and at or below the switch point. Otherwise changes
       are in no table, and all are snapshotted again; also if it is missing, or another one than before.
    4. The server's WAL has to reach the ceiling and every table's offset. Otherwise the database was brought
       back from an older copy, and will write other changes at positions that the tables take for done.
    5. A shape goes on if its entry is settled, its definition is the same, and its offset is in the common
       history and not below the one that the registry knows: that would be an older copy of the table. A
       table without an entry is snapshotted again: it missed what came while it did not count.
    6. A shape that awaits its snapshot goes on if that is in its table after all: the registry knows the copy
       that was about to be made, nothing has spoken against it since, the table is exactly at its offset, on
       the same timeline, and the slot begins at or below its cut, so that all changes after it come.
    7. The registry that is returned has the shapes of the file and no other: a removed shape stops
       counting, and is a table without an entry when it comes back. It has the reason of each snapshot, so
       that a crash before the snapshot changes nothing. When all are snapshotted, its ceiling starts again.
    """
    sentence = None if registry is None else _refusal(registry, server)
    if sentence is not None:
        return Decision(tuple(Refuse(shape.name, sentence) for shape in shapes), None)
    all_again = (
        None if registry is None else _gap(registry, server) or _lost_history(registry, server, offsets)
    )
    limit = None if registry is None else _switch_point(registry, server)
    actions = tuple(
        _action(shape, registry, server, all_again, limit, offsets.get(shape.name), shape.name in offsets)
        for shape in shapes
    )
    if any(isinstance(action, Refuse) for action in actions):
        return Decision(actions, None)
    if registry is None or all_again is not None:
        ceiling = server.confirmed_flush_lsn or 0
    else:
        ceiling = registry.ceiling_lsn if limit is None else min(registry.ceiling_lsn, limit)
    entries = {
        shape.name: _entry(shape, action, registry) for shape, action in zip(shapes, actions, strict=True)
    }
    if limit is not None:
        # Other changes than those of before may lie at the same positions.
        entries = {name: structs.replace(entry, looked_lsn=None) for name, entry in entries.items()}
    return Decision(actions, Registry(server.system_id, server.timeline, server.slot, ceiling, entries))


def _entry(shape: Shape, action: Action, registry: Registry | None) -> ShapeEntry:
    if isinstance(action, SnapshotAgain):
        return ShapeEntry(definition_hash(shape), action.reason, facts=None)
    assert registry is not None, "a shape goes on only by its entry"
    copy = registry.shapes[shape.name].copy
    if copy is not None:
        registry = registry.settled(shape.name, copy.facts)
    return registry.shapes[shape.name]


def _refusal(registry: Registry, server: ServerFacts) -> str | None:
    if server.system_id != registry.system_id:
        return (
            f"this storage belongs to the database system {registry.system_id}, and the server is"
            f" {server.system_id}. Fix: connect to the former, or use another storage"
        )
    if server.timeline < registry.timeline:
        return (
            f"the tables follow timeline {registry.timeline}, and the server is on {server.timeline}: it is"
            " a former primary or an old copy. Fix: connect to the present primary, or use another storage"
        )
    return None


def _gap(registry: Registry, server: ServerFacts) -> str | None:
    """Why no table may go on, in words."""
    if server.slot != registry.slot:
        return f"the slot is {server.slot} now, and the tables were fed from {registry.slot}"
    if server.confirmed_flush_lsn is None:
        return f"slot {server.slot} is missing: changes since it went away are in no table"
    switch_point = _switch_point(registry, server)
    if server.timeline != registry.timeline and switch_point is None:
        return (
            f"the server's timeline {server.timeline} doesn't descend from timeline {registry.timeline},"
            " which the tables follow"
        )
    stands = f"slot {server.slot} stands at {format_lsn(server.confirmed_flush_lsn)}"
    if server.confirmed_flush_lsn > registry.ceiling_lsn:
        return (
            f"{stands}, above {format_lsn(registry.ceiling_lsn)}, the highest position ever confirmed from"
            " here: somebody moved it or created it again, and the changes between are in no table"
        )
    if switch_point is not None and server.confirmed_flush_lsn > switch_point:
        return (
            f"{stands}, above {format_lsn(switch_point)}, where timeline {registry.timeline} was left:"
            " the changes between are in no table"
        )
    return None


def _lost_history(
    registry: Registry, server: ServerFacts, offsets: Mapping[str, LogOffset | None]
) -> str | None:
    if server.timeline != registry.timeline:
        # What was lost lies behind the switch point, and is judged by that.
        return None
    known = [registry.ceiling_lsn, *(offset.tx_offset for offset in offsets.values() if offset is not None)]
    if max(known) <= server.flush_lsn:
        return None
    return (
        f"the server's WAL ends at {format_lsn(server.flush_lsn)}, below {format_lsn(max(known))}, which the"
        " tables have: the database was brought back from an older copy"
    )


def _switch_point(registry: Registry, server: ServerFacts) -> int | None:
    """Where the server left the registry's timeline; None if it is still on it, or never was."""
    if server.timeline == registry.timeline:
        return None
    return server.switch_points.get(registry.timeline)


def not_our_table(shape: str) -> str:
    """What is said of a new shape in whose place is a table without an offset of ours."""
    return (
        f"the table {shape} in the storage was not written by Penstock for this database."
        " Fix: move it away, or choose another name for the shape"
    )


def _action(
    shape: Shape,
    registry: Registry | None,
    server: ServerFacts,
    all_again: str | None,
    limit: int | None,
    offset: LogOffset | None,
    has_table: bool,
) -> Action:
    name = shape.name
    entry = None if registry is None else registry.shapes.get(name)
    if entry is None:
        if has_table and offset is None:
            return Refuse(name, not_our_table(name))
        return SnapshotAgain(name, "its table is not in the registry" if has_table else "it is new")
    if all_again is not None:
        return SnapshotAgain(name, all_again)
    if entry.definition != definition_hash(shape):
        return SnapshotAgain(name, "its definition was changed")
    if entry.awaits_snapshot is not None:
        if offset is not None and limit is None and _is_copied(entry, offset, server):
            return Continue(name, offset)
        return SnapshotAgain(name, entry.awaits_snapshot)
    if offset is None:
        return SnapshotAgain(name, "its table has lost its offset" if has_table else "its table is gone")
    if entry.offset is not None and offset.tx_offset < entry.offset:
        return SnapshotAgain(
            name,
            f"its table is at {format_lsn(max(0, offset.tx_offset))} and was at {format_lsn(entry.offset)}:"
            " an older copy was put in its place",
        )
    if limit is not None and offset.tx_offset >= limit:
        return SnapshotAgain(
            name,
            f"its table is at {offset}, not below {format_lsn(limit)}, where the server left the timeline"
            " that it follows: it may hold changes that the database lost",
        )
    return Continue(name, offset)


def _is_copied(entry: ShapeEntry, offset: LogOffset, server: ServerFacts) -> bool:
    """Whether the table holds the copy that the registry knows, and the stream all that follows it."""
    if entry.copy is None or server.confirmed_flush_lsn is None:
        return False
    return offset.tx_offset == entry.copy.tx_offset and server.confirmed_flush_lsn <= entry.copy.cut_lsn

"""What is made of a look from outside: a Status, in the words that a service has for itself. Pure.

1. A slot that is missing, lost or of another kind, a lock that nobody holds, or whose holder doesn't read the
   slot: not ready.
2. Capture: the note is compared with the slot as the next leader would do it, so a GAP is seen before it.
3. Shapes: what a start would decide of each table now is decided here too, by the same rules.
4. A table has everything up to its own offset; and if it counts, everything that the slot was confirmed to.
   What lies between that and the end of the WAL may be no change of its at all: "at most" so much is lacking.
5. Shapes that read a marked stream need no slot: whoever holds the lock and reads none leads. The stream has
   to be written, and to reach back to what the slowest of their tables holds.
6. What can't be told is said, and is no reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import structs

from penstock.capture.slot_memory import compare
from penstock.errors import PostgresError
from penstock.lake.ports import TableVersion
from penstock.model.log_offset import LogOffset
from penstock.model.shape import Shape, ShapesFile
from penstock.model.snapshot_again import SnapshotAgain
from penstock.model.stream_position import History, StreamPosition
from penstock.outside.postgres_look import PostgresFacts, holder_text
from penstock.outside.shapes_look import StorageFacts
from penstock.outside.source_judgement import source_reading, source_reasons, with_newest
from penstock.outside.source_look import SourceFacts
from penstock.postgres.leader.lock import LockHolder
from penstock.postgres.slot.state import check_slot
from penstock.settings.postgres import ReplicationSettings
from penstock.shapes.pace.held import whole
from penstock.shapes.registry.decisions import (
    Action,
    Continue,
    Refuse,
    ServerFacts,
    decide,
    needed_lsn,
)
from penstock.shapes.registry.registry import Registry
from penstock.status.board import StatusBoard
from penstock.status.health import Health
from penstock.status.model import Status
from penstock.status.outside_reading import OutsideReading, TableReading

LED: Final = "led"
PREPARING: Final = "preparing"
NOT_LED: Final = "not led"

_OR_FROM: Final = "; or, if they read a stream, say so here, too: --from kinesis://STREAM"
_SAY_FROM: Final = ". Fix: if it reads a stream, say so here, too: --from kinesis://STREAM"
_ASK_IT: Final = (
    "what only a process can tell: its phase, seconds behind, rates, queues, what it complains of"
    " (--url asks one)"
)


def judge_capture(
    replication: ReplicationSettings, postgres: PostgresFacts, wal_lsn: int, now: float
) -> Status:
    """The status of a capture."""
    gaps: list[str] = []
    slot = postgres.slot
    if slot is not None and postgres.server is not None:
        found = compare(postgres.note, postgres.server, slot.start_lsn)
        gaps = [f"{finding.kind}: {finding.sentence}" for finding in found]
    outside = OutsideReading(
        replication.slot,
        wal_lsn,
        note_lsn=None if postgres.note is None else postgres.note.confirmed_lsn,
        unknown=[*postgres.unknown, _ASK_IT],
    )
    return _status("capture", replication, postgres, outside, gaps, now)


def judge_shapes(
    replication: ReplicationSettings,
    postgres: PostgresFacts,
    file: ShapesFile,
    storage: StorageFacts,
    wal_lsn: int,
    now: float,
    source: SourceFacts | None = None,
    *,
    stall_s: float = 60.0,
) -> Status:
    """The status of shapes; `source`: the stream that they read, which is silent for `stall_s` at most."""
    actions = decide_actions(
        replication.slot, postgres, file, storage, wal_lsn, from_stream=source is not None
    )
    slot = postgres.slot
    if source is not None:
        confirmed = 0 if storage.registry is None else storage.registry.ceiling_lsn
    else:
        confirmed = 0 if slot is None else slot.confirmed_flush_lsn or 0
    tables = [_table(shape, storage, actions.get(shape.name), confirmed, wal_lsn) for shape in file.shapes]
    refused = dict.fromkeys(action.sentence for action in actions.values() if isinstance(action, Refuse))
    # Shapes keep a registry instead of a note.
    unknown = [sentence for sentence in postgres.unknown if not sentence.startswith("the slot's note")]
    outside = OutsideReading(
        replication.slot,
        wal_lsn,
        tables=tables,
        unknown=[
            *unknown,
            _ASK_IT,
            "whether the rows are those of Postgres (penstock verify tells)",
        ],
    )
    if source is None:
        return _status("shapes", replication, postgres, outside, list(refused), now)
    outside = with_newest(outside, source)
    reasons = [*refused, *source_reasons(source, postgres.server, stall_s)]
    status = _status("shapes", replication, postgres, outside, reasons, now, from_stream=True)
    return structs.replace(status, source=source_reading(source))


def needed_position(
    postgres: PostgresFacts, storage: StorageFacts, actions: Mapping[str, Action]
) -> StreamPosition | None:
    """Where in a stream the slowest shape needs changes from; None: all begin with a snapshot."""
    if postgres.server is None or storage.registry is None:
        return None
    lsn = needed_lsn(actions.values(), storage.registry.ceiling_lsn)
    history = History(postgres.server.timeline, postgres.server.switch_points)
    return None if lsn is None else history.boundary(lsn)


def _status(
    service: str,
    replication: ReplicationSettings,
    postgres: PostgresFacts,
    outside: OutsideReading,
    more_reasons: list[str],
    now: float,
    *,
    from_stream: bool = False,
) -> Status:
    slot, holder = postgres.slot, postgres.holder
    board = StatusBoard(service, Health(), clock=lambda: now)
    board.note_slot(slot, postgres.slot_read_at)
    reasons = _stream_reasons(holder) if from_stream else _slot_reasons(service, replication, postgres)
    reasons += more_reasons
    leads = holder is not None and holder.reads_slot == (None if from_stream else replication.slot)
    return Status(
        service,
        NOT_LED if holder is None else LED if leads else PREPARING,
        ready=not reasons,
        reasons=reasons,
        slot=board.read().slot,
        outside=structs.replace(
            outside,
            wal_status=None if slot is None else slot.wal_status,
            leader=None if holder is None else holder_text(holder),
            reader=postgres.reader,
            processes=postgres.processes,
        ),
    )


def _slot_reasons(service: str, replication: ReplicationSettings, postgres: PostgresFacts) -> list[str]:
    slot, holder, name = postgres.slot, postgres.holder, replication.slot
    reasons: list[str] = []
    if slot is None:
        reasons.append(
            f"slot {name} does not exist: nobody has run here yet, or somebody dropped it."
            f" Fix: start penstock {service}, which creates it" + _OR_FROM * (service == "shapes")
        )
    else:
        try:
            check_slot(slot, replication.output_plugin)
        except PostgresError as error:
            reasons.append(str(error))
    if holder is None and postgres.reader is not None:
        reasons.append(
            f"{postgres.reader} reads slot {name} without its lock: it is no penstock, or has another"
            " LEADER_LOCK_KEY_OVERRIDE. Fix: end it, or use one key"
        )
    elif holder is None:
        reasons.append(_nobody_leads(service))
    elif holder.reads_slot != name:
        what = "no slot yet" if holder.reads_slot is None else f"slot {holder.reads_slot}"
        hint = _SAY_FROM * (service == "shapes" and holder.reads_slot is None)
        reasons.append(f"{holder_text(holder)} holds the lock and reads {what}{hint}")
    return reasons


def _stream_reasons(holder: LockHolder | None) -> list[str]:
    if holder is None:
        return [_nobody_leads("shapes --from")]
    if holder.reads_slot is None:
        return []
    return [
        f"{holder_text(holder)} holds the lock and reads slot {holder.reads_slot}, not the stream. Fix: leave"
        " --from out here, too; or end it, and start penstock shapes --from"
    ]


def _nobody_leads(command: str) -> str:
    return f"nobody leads: no process holds the slot's lock. Fix: start penstock {command}"


def decide_actions(
    slot: str,
    postgres: PostgresFacts,
    file: ShapesFile,
    storage: StorageFacts,
    wal_lsn: int,
    *,
    from_stream: bool = False,
) -> Mapping[str, Action]:
    """What a start would do with each shape whose table could be read; nothing without a server's history."""
    identity = postgres.server
    if identity is None:
        return {}
    confirmed = None if postgres.slot is None else postgres.slot.confirmed_flush_lsn
    if from_stream:
        # As Preparation does it: whether the stream reaches back far enough is seen there.
        slot, confirmed = slot if storage.registry is None else storage.registry.slot, 0
    server = ServerFacts(*identity, slot, confirmed, wal_lsn)
    shapes = [shape for shape in file.shapes if shape.name in storage.tables]
    offsets = {name: _offset(table) for name, table in storage.tables.items() if table.version >= 0}
    return {action.shape: action for action in decide(storage.registry, server, shapes, offsets).actions}


def _offset(table: TableVersion) -> LogOffset | None:
    return None if table.offset is None else whole(table.offset)


def _table(
    shape: Shape, storage: StorageFacts, action: Action | None, confirmed_lsn: int, wal_lsn: int
) -> TableReading:
    table = storage.tables.get(shape.name)
    offset = None if table is None else table.offset
    problem = storage.problems.get(shape.name)
    awaits = _awaits(shape, storage.registry)
    has = offset
    match action:
        case Refuse():
            problem = action.sentence
        case SnapshotAgain():
            awaits = action.reason
        case Continue():
            awaits, has = None, max(action.offset.tx_offset, confirmed_lsn)
    if has is None or awaits is not None or problem is not None:
        return TableReading(shape.name, awaits, offset, problem=problem)
    return TableReading(shape.name, awaits, offset, max(0, wal_lsn - has), problem)


def _awaits(shape: Shape, registry: Registry | None) -> str | None:
    entry = None if registry is None else registry.shapes.get(shape.name)
    return "it is new" if entry is None else entry.awaits_snapshot

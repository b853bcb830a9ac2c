"""What is made of a look from outside, by tables."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from penstock.kinesis.marked.manifest import ACTION, Manifest
from penstock.kinesis.read.manifest_ages import Needed
from penstock.kinesis.read.manifest_log import Arrived, Place
from penstock.kinesis.read.marked_stream import StreamAddress
from penstock.lake.ports import Position, TableVersion
from penstock.model.relation import Relation
from penstock.model.shape import Shape, ShapesFile, definition_hash
from penstock.model.stream_position import StreamPosition
from penstock.ops.status_command import exit_code
from penstock.outside.judgement import decide_actions, judge_capture, judge_shapes, needed_position
from penstock.outside.postgres_look import PostgresFacts
from penstock.outside.shapes_look import StorageFacts
from penstock.outside.source_look import SourceFacts
from penstock.outside.words import in_words
from penstock.postgres.leader.lock import LockHolder
from penstock.postgres.slot.note import SlotNote
from penstock.postgres.slot.state import SlotState
from penstock.postgres.timeline import ServerIdentity
from penstock.settings.loading import load_slot_settings
from penstock.shapes.registry.registry import Registry, ShapeEntry
from penstock.status.model import Status
from tests.servers.slots import HEALTHY

REPLICATION = load_slot_settings({"REPLICATION_SLOT": "s"}, None).replication
SERVER = ServerIdentity("77", 1, {})
LEADER = LockHolder(7, "penstock capture s at 10.0.0.7", reads_slot="s")
WELL = PostgresFacts(
    HEALTHY, 100.0, LEADER, "pid 7 (penstock capture s at 10.0.0.7)", 2, SlotNote("77", 1, 0x20), SERVER
)
SHAPE = Shape("orders", Relation("public", "orders"))
FILE = ShapesFile("shapes.toml", "/lake", (SHAPE,))
ENTRY = ShapeEntry(definition_hash(SHAPE), awaits_snapshot=None, facts=None)
REGISTRY = Registry("77", 1, "s", 0x20, {"orders": ENTRY})
AT_10 = TableVersion(3, Position(1, 0x10))
STORAGE = StorageFacts(REGISTRY, {"orders": AT_10}, {})


def judged(postgres: PostgresFacts, wal_lsn: int = 0x20) -> Status:
    return judge_capture(REPLICATION, postgres, wal_lsn, now=103.0)


def judged_shapes(storage: StorageFacts, postgres: PostgresFacts = WELL, wal_lsn: int = 0x60) -> Status:
    return judge_shapes(REPLICATION, postgres, FILE, storage, wal_lsn, now=103.0)


def test_a_capture_that_is_led() -> None:
    status = judged(WELL, 0x420)

    assert exit_code(status) == 0
    assert in_words(status, "slot s").splitlines() == [
        "led, nothing wrong is seen (slot s)",
        "  slot     confirmed 0/20, keeps 16 B of WAL on the server (no limit) (read 3 s ago)",
        "  server   WAL up to 0/420, 1.0 kB above what is confirmed; wal_status reserved",
        "  leader   pid 7 (penstock capture s at 10.0.0.7); processes that watch the slot: 2",
        "  note     0/20 was about to be confirmed last",
        "  unknown  what only a process can tell: its phase, seconds behind, rates, queues, what it complains"
        " of (--url asks one)",
    ]


UNREAD = HEALTHY._replace(active_pid=None)


@pytest.mark.parametrize(
    ("facts", "phase", "reasons"),
    [
        pytest.param(
            WELL._replace(slot=UNREAD, holder=None, reader=None),
            "not led",
            ["nobody leads: no process holds the slot's lock. Fix: start penstock capture"],
            id="nobody leads",
        ),
        pytest.param(
            WELL._replace(slot=None, holder=None, reader=None, note=None),
            "not led",
            ["slot s does not exist: ", "nobody leads: "],
            id="no slot",
        ),
        pytest.param(
            WELL._replace(slot=UNREAD._replace(wal_status="lost"), holder=None, reader=None),
            "not led",
            ["replication slot 's' is lost: ", "nobody leads: "],
            id="lost",
        ),
        pytest.param(
            WELL._replace(holder=None, reader="pid 9 (pg_recvlogical)"),
            "not led",
            ["pid 9 (pg_recvlogical) reads slot s without its lock: "],
            id="somebody else reads it",
        ),
        pytest.param(
            WELL._replace(slot=UNREAD, reader=None, holder=LEADER._replace(reads_slot=None)),
            "preparing",
            ["pid 7 (penstock capture s at 10.0.0.7) holds the lock and reads no slot yet"],
            id="preparing",
        ),
        pytest.param(
            WELL._replace(slot=UNREAD, reader=None, holder=LEADER._replace(reads_slot="other")),
            "preparing",
            ["pid 7 (penstock capture s at 10.0.0.7) holds the lock and reads slot other"],
            id="the lock of another slot",
        ),
        pytest.param(
            WELL._replace(note=SlotNote("77", 1, 0x18)),
            "led",
            ["GAP: the slot was gone, or somebody moved it. The stream has everything up to 0/18"],
            id="above its note",
        ),
        pytest.param(
            WELL._replace(server=ServerIdentity("78", 1, {})),
            "led",
            ["system_changed: the server's system id is 78, it was 77", "GAP: "],
            id="another server",
        ),
        pytest.param(
            WELL._replace(note=SlotNote("77", 1, 0x18), server=None, unknown=("the server's timeline: no",)),
            "led",
            [],
            id="a history that can't be told is no reason",
        ),
    ],
)
def test_what_is_wrong_with_a_capture(facts: PostgresFacts, phase: str, reasons: list[str]) -> None:
    status = judged(facts)

    assert status.phase == phase
    assert len(status.reasons) == len(reasons)
    assert all(found.startswith(begins) for found, begins in zip(status.reasons, reasons, strict=True))
    assert (status.ready, exit_code(status)) == (not reasons, 1 if reasons else 0)
    assert in_words(status, "").splitlines()[1 : 1 + len(reasons)] == [
        f"  {found}" for found in status.reasons
    ]
    for sentence in facts.unknown:
        assert f"  unknown  {sentence}" in in_words(status, "").splitlines()


def entry(**changes: object) -> StorageFacts:
    fields = {"definition": ENTRY.definition, "awaits_snapshot": None, "facts": None, **changes}
    return STORAGE._replace(registry=Registry("77", 1, "s", 0x20, {"orders": ShapeEntry(**fields)}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("storage", "line"),
    [
        pytest.param(STORAGE, "0/10, at most 64 B behind", id="all that is confirmed is in it"),
        pytest.param(
            STORAGE._replace(tables={"orders": TableVersion(3, Position(1, 0x40))}),
            "0/40, at most 32 B behind",
            id="its own offset is above",
        ),
        pytest.param(
            STORAGE._replace(tables={"orders": TableVersion(3, Position(1, 0x60))}),
            "0/60, up to date",
            id="up to date",
        ),
        pytest.param(
            StorageFacts(None, {"orders": TableVersion(-1, None)}, {}),
            "awaits a snapshot: it is new",
            id="new",
        ),
        pytest.param(
            entry(awaits_snapshot="--resnapshot asked for it"),
            "0/10, awaits a snapshot: --resnapshot asked for it",
            id="awaits",
        ),
        pytest.param(
            entry(definition="another"),
            "0/10, awaits a snapshot: its definition was changed",
            id="definition",
        ),
        pytest.param(
            STORAGE._replace(tables={"orders": TableVersion(-1, None)}),
            "awaits a snapshot: its table is gone",
            id="gone",
        ),
        pytest.param(
            STORAGE._replace(tables={}, problems={"orders": "can't read /lake"}),
            "can't read /lake",
            id="unreadable",
        ),
    ],
)
def test_a_shape(storage: StorageFacts, line: str) -> None:
    status = judged_shapes(storage)

    assert status.ready
    assert f"  shape    orders  {line}" in in_words(status, "").splitlines()


def test_without_the_servers_history_only_the_tables_own_offset_counts() -> None:
    status = judged_shapes(STORAGE, WELL._replace(server=None))
    assert "  shape    orders  0/10, at most 80 B behind" in in_words(status, "")


def test_what_a_start_would_refuse_is_a_reason() -> None:
    other = STORAGE._replace(registry=Registry("78", 1, "s", 0x20, {"orders": ENTRY}))

    status = judged_shapes(other)

    [reason] = status.reasons
    assert reason.startswith("this storage belongs to the database system 78, and the server is 77")
    assert not status.ready


NOW = datetime(2026, 11, 17, 12, tzinfo=UTC)
DAY = timedelta(hours=24)
ADDRESS = StreamAddress("shop", "shop", "etl", "eu-west-1")
HOLDS_ONLY = WELL._replace(slot=None, reader=None, holder=LEADER._replace(reads_slot=None))


def manifest(since: int, resolved: int, came: timedelta, system: str = "77") -> Arrived:
    at = str(StreamPosition(1, since)), str(StreamPosition(1, resolved))
    return Arrived(
        Place("shardId-0", 7), Manifest(ACTION, system, "etl", "by", *at, 0, 0, {}, {}), NOW - came
    )


SOURCE = SourceFacts(
    ADDRESS,
    NOW,
    DAY,
    newest=manifest(0x40, 0x50, timedelta(seconds=4)),
    needed=StreamPosition(1, 0x20),
    first=Needed(StreamPosition(1, 0x18), timedelta(hours=2)),
)


def judged_stream(source: SourceFacts, postgres: PostgresFacts = HOLDS_ONLY) -> Status:
    return judge_shapes(REPLICATION, postgres, FILE, STORAGE, 0x60, 103.0, source)


def test_shapes_that_read_a_stream_need_no_slot() -> None:
    status = judged_stream(SOURCE)

    assert in_words(status, "stream shop").splitlines()[:-2] == [
        "led, nothing wrong is seen (stream shop)",
        "  stream   shop, of slot etl; keeps records 24 h, and those that came 2.0 h ago are still needed",
        "  manifest up to 0/50, 16 B below the server's WAL; the last came 4 s ago",
        "  leader   pid 7 (penstock capture s at 10.0.0.7); processes that watch the slot: 2",
        "  shape    orders  0/10, at most 64 B behind",
    ]
    assert status.source is not None
    assert status.source.expires_s == 22 * 3600
    actions = decide_actions("s", HOLDS_ONLY, FILE, STORAGE, 0x60, from_stream=True)
    assert needed_position(HOLDS_ONLY, STORAGE, actions) == StreamPosition(1, 0x20)


def test_a_slot_that_was_left_behind_is_shown() -> None:
    status = judged_stream(SOURCE, HOLDS_ONLY._replace(slot=UNREAD))
    assert status.ready
    assert (
        "  slot     confirmed 0/20, keeps 16 B of WAL on the server (no limit), and nobody reads it"
        in in_words(status, "")
    )


@pytest.mark.parametrize(
    ("source", "facts", "reason"),
    [
        pytest.param(
            SOURCE,
            HOLDS_ONLY._replace(holder=None),
            "nobody leads: no process holds the slot's lock. Fix: start penstock shapes --from",
            id="nobody leads",
        ),
        pytest.param(
            SOURCE,
            HOLDS_ONLY._replace(holder=LEADER),
            "pid 7 (penstock capture s at 10.0.0.7) holds the lock and reads slot s, not the stream. Fix: ",
            id="the holder reads a slot",
        ),
        pytest.param(
            SOURCE._replace(newest=manifest(0x40, 0x50, timedelta(seconds=61))),
            HOLDS_ONLY,
            "no manifest has come into shop for 61 s. Fix: see whether penstock capture runs and is ready",
            id="capture is gone",
        ),
        pytest.param(
            SOURCE._replace(newest=None),
            HOLDS_ONLY,
            "no manifest has come into shop for at least 120 s. Fix: ",
            id="for long",
        ),
        pytest.param(
            SOURCE._replace(newest=manifest(0x40, 0x50, timedelta(), system="78")),
            HOLDS_ONLY,
            "the stream has manifests of system 78, and the server is 77. Fix: ",
            id="another server's",
        ),
        pytest.param(
            SOURCE._replace(first=Needed(StreamPosition(1, 0x28), timedelta(hours=2))),
            HOLDS_ONLY,
            "manifests of slot etl: they begin at 0/28 of timeline 1, and the slowest shape needs them from",
            id="expired",
        ),
        pytest.param(
            SOURCE._replace(first=Needed(StreamPosition(1, 0x18), timedelta(hours=12))),
            HOLDS_ONLY,
            "the slowest shape needs changes that came into the stream 12.0 h ago, which keeps records",
            id="late",
        ),
        pytest.param(
            SourceFacts(ADDRESS, NOW, problem="no such stream. Fix: none"),
            HOLDS_ONLY,
            "no such stream. Fix: none",
            id="unreadable",
        ),
    ],
)
def test_what_is_wrong_with_shapes_that_read_a_stream(
    source: SourceFacts, facts: PostgresFacts, reason: str
) -> None:
    status = judged_stream(source, facts)
    [found] = status.reasons
    assert found.startswith(reason)
    assert exit_code(status) == 1


def test_new_shapes_need_nothing_of_a_stream() -> None:
    new = StorageFacts(None, {"orders": TableVersion(-1, None)}, {})
    actions = decide_actions("s", HOLDS_ONLY, FILE, new, 0x60, from_stream=True)
    assert needed_position(HOLDS_ONLY, new, actions) is None
    source = SOURCE._replace(needed=None, first=None)
    status = judge_shapes(REPLICATION, HOLDS_ONLY, FILE, new, 0x60, 103.0, source)
    assert status.ready
    assert "  shape    orders  awaits a snapshot: it is new" in in_words(status, "").splitlines()


@pytest.mark.parametrize("slot", [None, UNREAD])
def test_shapes_without_a_slot_may_be_asked_for_the_wrong_source(slot: SlotState | None) -> None:
    status = judged_shapes(STORAGE, HOLDS_ONLY._replace(slot=slot))
    assert any("if it reads a stream, say so here, too: --from kinesis://STREAM" in r for r in status.reasons)


def test_a_slot_that_was_moved_means_snapshots() -> None:
    postgres = WELL._replace(slot=HEALTHY._replace(confirmed_flush_lsn=0x30))
    outside = judged_shapes(STORAGE, postgres).outside
    assert outside is not None
    [table] = outside.tables
    assert "above 0/20, the highest position ever confirmed from here" in (table.awaits_snapshot or "")
    assert table.lag_bytes is None

"""A second output plugin: capture and shapes take it as they are, given a Decoder of its payloads."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from penstock.capture.ack import AckTracker
from penstock.capture.intake import Intake
from penstock.changelog.log import ChangeLog, LogLimits
from penstock.changelog.runs import create_run
from penstock.decoding import plugins
from penstock.decoding.decoder import (
    Cell,
    Cells,
    Decoder,
    KeyColumn,
    KeyScanner,
    NamedType,
    RecordContent,
    RowChange,
    Summary,
    TransactionEnds,
    Unreadable,
    Value,
)
from penstock.decoding.rows import ChangeDecoder, Column
from penstock.kinesis.read.marked_stream import StreamAddress
from penstock.kinesis.write.partition_key import Fallback, PartitionKeys, UnknownRelation
from penstock.lake.jobs.changes import ShapeLayout
from penstock.lake.stream.flush import Flush, both_rows, rendering
from penstock.lake.stream.keeping import Keeping
from penstock.lake.stream.old_row import OldRow
from penstock.lake.stream.place import StreamPlace
from penstock.model.change import Action
from penstock.model.key_indexes import KeyIndexes
from penstock.model.log_offset import LogOffset
from penstock.model.relation import Relation
from penstock.model.shape import Shape, ShapesFile
from penstock.model.stream_position import History
from penstock.postgres.catalog.table_catalog import column_facts
from penstock.postgres.catalog.table_facts import ColumnFacts, IndexFacts, LeafFacts, TableFacts
from penstock.postgres.catalog.table_tree import Member, Tree
from penstock.postgres.stream.walk import FrameWalk
from penstock.settings.loading import load_shapes_settings
from penstock.shapes.definition.table_rules import table_problems
from penstock.shapes.feed.collector import Append, Collector, Committed
from penstock.shapes.feeders import feeder_for
from penstock.shapes.leadership import Order, Service
from penstock.sources.log_source import LogQuery, look
from penstock.status.health import Health
from penstock.status.metrics import ShapesMetrics


class NoScanner:
    """Payloads without a short cut."""

    found: None = None
    varies = True

    def scan(self, payload: bytes) -> str | None:
        return None

    def learn(self, payload: bytes, relation: Relation, *, prefix: str, name: str) -> None:
        pass

    def forget(self) -> None:
        pass


class LineDecoder:
    """Payloads such as `I public.t id=7 v=x`, `B 100 110` and `C 100 110`; the first column is the key.

    The server says once, in `R 1 public.t`, what a number stands for, and sends `I 1 id=7 v=x`.
    """

    plugin = "lines"
    refused_option_fix = "there are no options"
    strings_since = "3"

    def __init__(self) -> None:
        self._names: dict[bytes, bytes] = {}

    def payload(self, raw: memoryview | bytes, /) -> bytes | None:
        action, _, rest = bytes(raw).partition(b" ")
        number, _, cells = rest.partition(b" ")
        if action == b"R":
            self._names[number] = cells
            return None
        if action in (b"I", b"U", b"D"):
            return b" ".join((action, self._names[number], cells))
        return bytes(raw)

    def action(self, payload: bytes) -> Action | None:
        try:
            return Action(payload[:1].decode())
        except ValueError:
            return None

    def transaction(self, payload: bytes) -> TransactionEnds:
        try:
            _, commit_lsn, end_lsn = payload.split()
            return TransactionEnds(int(commit_lsn), int(end_lsn))
        except ValueError as error:
            raise Unreadable("not a begin or a commit") from error

    def row(self, payload: bytes) -> RowChange:
        relation = self.relation(payload)
        if relation is None:
            raise Unreadable("no table")
        values = [Value(name, msgspec.Raw(json.dumps(value).encode())) for name, value in _cells(payload)]
        gone = self.action(payload) is Action.DELETE
        return RowChange(
            *relation,
            columns=[] if gone else values,
            identity=values if gone else [],
            pk=msgspec.Raw(values[0].name.encode() if values else b""),
        )

    def cells(self, payload: bytes) -> Cells:
        action = self.action(payload)
        if action is None:
            raise Unreadable("not a change")
        row = [Cell(name, "text", msgspec.Raw(json.dumps(value).encode())) for name, value in _cells(payload)]
        gone = action is Action.DELETE
        return Cells(action.value, [] if gone else row, row if gone else [], [KeyColumn(row[0].name)])

    def stream_record(self, payload: bytes, action: Action, kept: Collection[str] | None) -> bytes:
        relation = self.relation(payload)
        if relation is None:
            raise Unreadable("no table")
        cells = [
            {"name": name, "type": "text", "value": value}
            for name, value in _cells(payload)
            if kept is None or name in kept
        ]
        row = "identity" if action is Action.DELETE else "columns"
        members = {"action": action.value, **relation._asdict(), row: cells, "pk": [{"name": "id"}]}
        return json.dumps(members, separators=(",", ":")).encode()

    def printed(self, cell: Cell) -> str | None:
        return msgspec.json.decode(cell.value, type=str | None)

    def relation(self, payload: bytes) -> Relation | None:
        words = payload.decode().split()
        return Relation(*words[1].split(".")) if len(words) > 1 and "." in words[1] else None

    def columns(self, payload: bytes) -> list[NamedType]:
        return [NamedType(name, "text") for name, _ in _cells(payload)]

    def key_columns(self, pk: bytes) -> tuple[str, ...]:
        return (pk.decode(),)

    def summary(self, payload: bytes) -> Summary:
        return Summary()

    def frame_type(self, printed: str) -> str:
        return printed.upper()

    def is_unreadable(self, printed: str) -> bool:
        return " " in printed

    def record_options(self, content: RecordContent) -> dict[str, str]:
        return {"lsn": str(content.lsn)}

    def row_options(self) -> list[dict[str, str]]:
        return [{}]

    def table_options(self, relations: Collection[Relation]) -> dict[str, str]:
        return {"only": ",".join(map(str, relations))}

    def scanner(self) -> KeyScanner:
        return NoScanner()

    def left_out(self, notice: str) -> Relation | None:
        return None


def _cells(payload: bytes) -> list[tuple[str, str]]:
    return [
        (name, value) for name, _, value in (word.partition("=") for word in payload.decode().split()[2:])
    ]


DECODER: Decoder = LineDecoder()
LINES = (
    b"B 100 110",
    b"I public.t id=7 v=x",
    b"I public.other id=1",
    b"D public.t id=7",
    b"M a message",
    b"C 100 110",
)


SENT = (
    LINES[0],
    b"R 1 public.t",
    b"I 1 id=7 v=x",
    b"R 2 public.other",
    b"I 2 id=1",
    b"R 1 public.t",
    b"D 1 id=7",
    *LINES[4:],
)


def frames() -> list[memoryview]:
    return [memoryview(struct.pack("!cqqq", b"w", 90, 90, 0) + line) for line in SENT]


def test_what_says_nothing_by_itself_is_swallowed_and_the_rest_rendered_once() -> None:
    decoder = LineDecoder()
    assert [decoder.payload(raw) for raw in SENT] == [
        *(LINES[0], None, LINES[1], None, LINES[2], None, LINES[3]),
        *LINES[4:],
    ]


def test_capture_takes_it() -> None:
    walk, tracker = FrameWalk(LineDecoder(), confirmed_lsn=10), AckTracker(initial_lsn=10)
    keys = PartitionKeys(DECODER, by_primary_key=True, fallback=Fallback.LSN)
    intake = Intake(
        walk=walk,
        tracker=tracker,
        keys=keys,
        publish_transactions=False,
        max_event_bytes=10_000,
        window=10,
    )
    events, start = [], 0
    while start < len(SENT):
        taken = intake.take(frames(), start, 0.0)
        events += taken.events
        start = taken.next_frame
        if taken.unknown is not None:
            keys.learn(taken.unknown, KeyIndexes(["id"]))

    assert [(event.partition_key, event.offset, event.payload) for event in events] == [
        ("public.t/7", LogOffset(100, 0), LINES[1]),
        ("public.other/1", LogOffset(100, 2), LINES[2]),
        ("public.t/7", LogOffset(100, 4), LINES[3]),
    ]
    assert tracker.mark_published_ids([event.ack_id for event in events]) == 110


def test_shapes_take_it() -> None:
    table = Relation("public", "t")
    walk = FrameWalk(LineDecoder(), confirmed_lsn=10, needs_lsn=True)
    collector = Collector(walk=walk, shapes={"s": table}, trees=[Tree(Member(table, 1, 1, "a"))], held={})

    taken = collector.take(frames(), 0)

    assert taken.next_frame == len(SENT)
    assert taken.steps == [
        Append(table, 100, 0, LINES[1]),
        Append(table, 100, 4, LINES[3]),
        Committed(LogOffset(100, 4), 110, frozenset({"s"})),
    ]


@pytest.fixture
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line that a new decoder adds to plugins.py: workers know a decoder by its plugin's name."""
    monkeypatch.setitem(plugins._DECODERS, DECODER.plugin, LineDecoder)


@pytest.mark.usefixtures("_known")
def test_the_lake_takes_it() -> None:
    decoder = ChangeDecoder(
        "public.t", [Column("id", "text"), Column("v", "text")], ["id"], plugin=DECODER.plugin
    )

    inserted, deleted = decoder.decode([(100, 0), (100, 4)], [LINES[1], LINES[3]]).to_pylist()

    assert (inserted["_penstock_action"], inserted["id"], inserted["v"]) == ("insert", "7", "x")
    assert (deleted["_penstock_action"], deleted["id"], deleted["v"]) == ("delete", "7", None)
    assert (deleted["_penstock_tx_offset"], deleted["_penstock_op_offset"]) == (100, 4)


@pytest.mark.usefixtures("_known")
def test_a_stream_as_storage_takes_it() -> None:
    columns = (Column("id", "text"), Column("v", "text"))
    layout = ShapeLayout("public.t", columns, ("id",), ("id",), plugin=DECODER.plugin, where="v = 'x'")
    flush = Flush(
        StreamPlace("s", "eu-north-1", None),
        layout,
        KeyIndexes(["id"]),
        frozenset({"id"}),
        History(1, {}),
        "0" * 12,
        "s",
        Keeping(),
        OldRow(("id", "v"), ()),
    )
    batch = pa.RecordBatch.from_pydict(
        {"tx_offset": [100, 100], "op_offset": [0, 4], "payload": [LINES[1], LINES[3]]}
    )

    with_rows = both_rows(batch, layout, flush.old_row)
    judged = pa.RecordBatch.from_arrays(
        [*with_rows.columns[:3], pa.array([False, True]), pa.array([True, False])],
        names=[*with_rows.schema.names[:3], "_penstock_old_inside", "_penstock_new_inside"],
    )
    [records] = rendering(flush)(iter([judged]))

    old, new = (with_rows[name].to_pylist() for name in ("_penstock_old", "_penstock_new"))
    assert (old[1]["id"], new[0]) == ("7", {"id": "7", "v": "x"})
    cells = b'[{"name":"id","type":"text","value":"7"}],"pk":[{"name":"id"}]'
    names = b'"schema":"public","table":"t"'
    assert records["_penstock_payload"].to_pylist() == [
        b'{"action":"I",%s,"columns":%s}' % (names, cells),
        b'{"action":"D",%s,"identity":%s}' % (names, cells),
    ]
    assert records["_penstock_key"].to_pylist() == ["public.t/7"] * 2


@pytest.mark.usefixtures("_known")
def test_a_log_of_it_can_be_queried(tmp_path: Path) -> None:
    log = ChangeLog(create_run(tmp_path, "run"), LogLimits(min_free_bytes=0))
    log.append(Relation("public", "t"), 100, 0, LINES[1])
    log.append(Relation("public", "t"), 100, 4, LINES[3])
    log.commit(100)
    log.flush(0.0)
    log.close()

    found = look(LogQuery.parse({"path": str(tmp_path), "table": "public.t", "plugin": "lines"}))

    assert (found.columns, found.key) == ((Column("id", "text"), Column("v", "text")), ("id",))
    decoder = found.decoder(Relation("public", "t"))
    assert decoder.decode([(100, 0)], [LINES[1]]).to_pylist()[0]["v"] == "x"


@pytest.mark.usefixtures("_known")
def test_shapes_from_a_stream_read_what_the_stream_has_and_cut_with_what_the_server_has() -> None:
    settings = load_shapes_settings({}, dotenv=None)
    replication = settings.replication.model_copy(update={"output_plugin": DECODER.plugin})
    settings = settings.model_copy(update={"replication": replication})
    file = ShapesFile("shapes.toml", "/lake", ())
    address = StreamAddress("s", "s", "slot", "eu-north-1", None)

    plugins_of = {}
    for name, stream in (("slot", None), ("stream", address)):
        feeder = feeder_for(settings, file, stream)
        nothing: Any = None
        leadership = feeder.leadership(
            settings,
            Order(file, nothing, feeder.source, feeder.plugin, frozenset(), once=False),
            make_jobs=nothing,
            threads=nothing,
            service=Service(Health(), ShapesMetrics(), nothing, asyncio.Event()),
        )
        catalog = leadership._database.catalog
        plugins_of[name] = (feeder.plugin, catalog.decoder.plugin, catalog.slot_plugin)

    assert plugins_of == {
        "slot": ("lines", "lines", "lines"),
        "stream": ("wal2json", "wal2json", "lines"),
    }


def test_partition_keys_read_it() -> None:
    keys = PartitionKeys(DECODER, by_primary_key=True, fallback=Fallback.TABLE)
    with pytest.raises(UnknownRelation) as unknown:
        keys.key(LINES[1], 90)
    keys.learn(unknown.value.relation, KeyIndexes(["id"]))

    assert [keys.key(line, 90) for line in (LINES[1], LINES[3])] == ["public.t/7"] * 2
    assert keys.key(b"T public.t", 90) == "public.t"


def test_the_catalog_and_the_rules_speak_its_language() -> None:
    row = ("v", 2, "my mood", None, False, False, (), "", False, "")
    column = column_facts(row, {}, DECODER)
    assert column.type == "MY MOOD"

    table = Relation("public", "t")
    facts = TableFacts(
        Tree(Member(table, 1, 1, "a")),
        (ColumnFacts("id", 1, "text", not_null=True), column),
        (IndexFacts("t_pkey", ("id",), is_primary=True),),
        leaves=(LeafFacts(table, identity=("id",)),),
    )
    [problem] = table_problems(Shape("s", table), facts, DECODER)
    assert problem.found.startswith("lines can't write the type MY MOOD of column 'v'")

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from penstock.changelog.errors import ChangeLogTrimmed, SegmentUnreadable
from penstock.changelog.index import SegmentRange
from penstock.changelog.log import ChangeLog, LogLimits
from penstock.changelog.runs import create_run
from penstock.changelog.segment import read_segment
from penstock.decoding.rows import DecodeError
from penstock.decoding.wal2json import Wal2Json, replication_options
from penstock.local.postgres import PrivatePostgres
from penstock.model.lsn import format_lsn
from penstock.model.relation import Relation
from penstock.postgres.connection import PINNED_SESSION
from penstock.sources import log_source as changes_source
from penstock.sources.log_source import ChangesSource, LogQuery, LogQueryError, look
from penstock.spark import register
from tests.change_log_rows import ITEMS, LIMITS, ORDERS, txn

TYPES = {"id": "bigint", "amount": "numeric(12,2)", "note": "text", "placed": "timestamp with time zone"}
ROW = {"id": "7", "amount": "1.50", "note": '"a"', "placed": '"2026-01-02 03:04:05+00"'}
SMALL_SEGMENTS = LogLimits(min_free_bytes=0, segment_bytes=1024)


def cells(values: Mapping[str, str], types: Mapping[str, str] | None = None) -> str:
    """Columns as wal2json writes them: values are JSON text."""
    known = {**TYPES, **(types or {})}
    each = (f'{{"name":"{name}","type":"{known[name]}","value":{value}}}' for name, value in values.items())
    return f"[{','.join(each)}]"


def insert(types: Mapping[str, str] | None = None, **values: str) -> bytes:
    pk = '[{"name":"id","type":"bigint"}]'
    return f'{{"action":"I","columns":{cells({**ROW, **values}, types)},"pk":{pk}}}'.encode()


def update(columns: Mapping[str, str], identity: Mapping[str, str]) -> bytes:
    return f'{{"action":"U","columns":{cells(columns)},"identity":{cells(identity)}}}'.encode()


def delete(**identity: str) -> bytes:
    return f'{{"action":"D","identity":{cells(identity)}}}'.encode()


def new_log(directory: Path, run: str = "run-1", limits: LogLimits = LIMITS) -> ChangeLog:
    return ChangeLog(create_run(directory, run), limits)


def add(log: ChangeLog, tx_offset: int, *frames: bytes, relation: Relation = ORDERS) -> None:
    """A transaction, on disk."""
    for place, frame in enumerate(frames):
        log.append(relation, tx_offset, 2 * place, frame)
    log.commit(tx_offset)
    log.flush(0.0)


def load(spark: SparkSession, directory: Path, table: str = "public.orders", **options: str) -> DataFrame:
    register(spark)
    return spark.read.format("penstock").option("table", table).options(**options).load(str(directory))


def rows(directory: Path, table: str = "public.orders", **options: str) -> list[dict[str, Any]]:
    """What the source gives, without Spark around it."""
    read: list[dict[str, Any]] = [row for batch in batches(directory, table, **options) for row in batch]
    return [{name.removeprefix("_penstock_"): value for name, value in row.items()} for row in read]


def batches(directory: Path, table: str = "public.orders", **options: str) -> list[list[dict[str, Any]]]:
    source = ChangesSource({"path": str(directory), "table": table, **options})
    reader = source.reader(source.schema())
    parts: list[Iterator[Any]] = [reader.read(part) for part in reader.partitions()]
    return [batch.to_pylist() for part in parts for batch in part]


def places(changes: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    return [(change["tx_offset"], change["op_offset"]) for change in changes]


def test_every_kind_of_change_is_a_typed_row(spark: SparkSession, tmp_path: Path) -> None:
    log = new_log(tmp_path)
    add(log, 0x16B374D848, insert(), update({"id": "7", "amount": "2.00"}, {"id": "7"}))
    add(log, 0x16B374D900, update({**ROW, "id": "8"}, {"id": "7"}), delete(id="8"), b'{"action":"T"}')

    changes = load(spark, tmp_path)

    assert changes.dtypes == [
        ("_penstock_tx_offset", "bigint"),
        ("_penstock_op_offset", "bigint"),
        ("_penstock_lsn", "string"),
        ("_penstock_relation", "string"),
        ("_penstock_action", "string"),
        ("_penstock_absent", "array<string>"),
        ("_penstock_old_key", "struct<id:bigint>"),
        ("id", "bigint"),
        ("amount", "decimal(12,2)"),
        ("note", "string"),
        ("placed", "timestamp"),
    ]
    first, second = (
        (0x16B374D848, "16/B374D848", "public.orders"),
        (0x16B374D900, "16/B374D900", "public.orders"),
    )
    placed = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    nothing = (None, None, None)
    got = [tuple(row.values()) for row in changes.toArrow().to_pylist()]
    assert [(row[0], *row[2:4], row[1], *row[4:]) for row in sorted(got, key=lambda row: row[:2])] == [
        (*first, 0, "insert", None, None, 7, Decimal("1.50"), "a", placed),
        (*first, 2, "update", ["note", "placed"], None, 7, Decimal("2.00"), None, None),
        (*second, 0, "delete", None, None, 7, *nothing),
        (*second, 1, "insert", None, {"id": 7}, 8, Decimal("1.50"), "a", placed),
        (*second, 2, "delete", None, None, 8, *nothing),
        (*second, 4, "truncate", None, None, None, *nothing),
    ]


def test_a_column_added_in_between_has_its_place_and_is_absent_before(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    add(log, 100, delete(id="1"), update({"id": "2", "placed": "null"}, {"id": "2"}))
    add(log, 200, insert())

    changes = rows(tmp_path)

    assert list(changes[0])[-4:] == list(TYPES)
    assert [change["absent"] for change in changes] == [None, ["amount", "note"], None]


def test_a_column_whose_type_changed_is_read_in_parts(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    add(log, 100, insert(note='"old"'))
    add(log, 200, insert({"note": "character varying(20)"}, note='"longer"'))
    add(log, 300, insert({"note": "integer"}, note="5"))

    with pytest.raises(LogQueryError) as refused:
        rows(tmp_path)

    assert str(refused.value).startswith("column note of public.orders was text, and is integer")
    assert [change["note"] for part in parts(refused.value) for change in rows(tmp_path, **part)] == [
        "old",
        "longer",
        5,
    ]


@pytest.mark.parametrize("broken", [insert({"note": "integer"}, note="5"), b'{"action":"I","colu'])
def test_a_transaction_that_has_no_one_layout_can_be_left_out(tmp_path: Path, broken: bytes) -> None:
    log = new_log(tmp_path)
    add(log, 100, insert())
    add(log, 200, insert(), broken)
    add(log, 300, insert())

    with pytest.raises((LogQueryError, DecodeError)) as refused:
        rows(tmp_path)

    assert [places(rows(tmp_path, **part)) for part in parts(refused.value)] == [[(100, 0)], [(300, 0)]]


def parts(error: Exception) -> list[dict[str, str]]:
    """The options that a message recommends."""
    found = re.findall(r'\.option\("(\w+)", "([0-9A-F/]+)"\)', str(error))
    assert [name for name, _ in found] == ["up_to", "after"]
    return [dict([pair]) for pair in found]


def test_reading_ends_at_the_last_commit_whatever_is_behind_it(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    add(log, 100, insert())
    log.append(ORDERS, 200, 0, insert())
    log.flush(0.0)
    (segment,) = (tmp_path / "run-1").iterdir()
    assert places(rows(tmp_path)) == [(100, 0)]

    log.commit(200)
    before = segment.stat().st_size
    log.flush(0.0)
    with segment.open("r+b") as file:
        file.truncate((before + segment.stat().st_size) // 2)

    assert places(rows(tmp_path)) == [(100, 0)]


def test_a_dataframe_stays_what_the_log_held_at_load(spark: SparkSession, tmp_path: Path) -> None:
    log = new_log(tmp_path)
    add(log, 100, insert())
    changes = load(spark, tmp_path)
    add(log, 200, insert())

    assert (changes.count(), load(spark, tmp_path).count()) == (1, 2)


def test_each_segment_is_a_partition(spark: SparkSession, tmp_path: Path) -> None:
    log = new_log(tmp_path, limits=SMALL_SEGMENTS)
    for tx_offset in range(100, 120):
        add(log, tx_offset, insert(), insert())
    segments = len(list((tmp_path / "run-1").iterdir()))
    assert segments > 2

    changes = load(spark, tmp_path)

    assert changes.selectExpr("spark_partition_id() AS part").distinct().count() == segments
    changes.createOrReplaceTempView("changes")
    (row,) = spark.sql("SELECT count(*), count(DISTINCT _penstock_lsn), sum(amount) FROM changes").collect()
    assert tuple(row) == (40, 20, Decimal("60.00"))


def test_a_trimmed_log_says_so_where_changes_would_be_missing(spark: SparkSession, tmp_path: Path) -> None:
    log = new_log(tmp_path, limits=SMALL_SEGMENTS)
    for tx_offset in range(100, 120):
        add(log, tx_offset, insert(), insert())
    before = load(spark, tmp_path)
    log.trim(txn(110))

    left = places(rows(tmp_path))

    assert 1 < len(left) < 40
    begins = left[0][0] - 1
    assert places(rows(tmp_path, after=format_lsn(begins))) == left
    with pytest.raises(ChangeLogTrimmed, match="holds only what is after"):
        rows(tmp_path, after=format_lsn(begins - 1))
    with pytest.raises(PySparkException, match=r"ChangeLogTrimmed: .* was trimmed since load"):
        before.count()


def test_a_look_during_which_segments_went_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log(tmp_path, limits=SMALL_SEGMENTS)
    for tx_offset in range(100, 120):
        add(log, tx_offset, insert(), insert())

    def trim_first(part: SegmentRange) -> Iterator[pa.RecordBatch]:
        log.trim(txn(110))
        return read_segment(part)

    monkeypatch.setattr(changes_source, "read_segment", trim_first)

    assert (
        look(query(tmp_path)).plan[0].path.endswith(min(path.name for path in (tmp_path / "run-1").iterdir()))
    )


def test_a_damaged_segment_is_an_error(tmp_path: Path) -> None:
    log = new_log(tmp_path, limits=SMALL_SEGMENTS)
    for tx_offset in range(100, 120):
        add(log, tx_offset, insert(), insert())
    min((tmp_path / "run-1").iterdir()).write_bytes(b"")

    with pytest.raises(SegmentUnreadable):
        look(query(tmp_path))


def query(directory: Path) -> LogQuery:
    return LogQuery.parse({"path": str(directory), "table": "public.orders"})


def test_the_run_that_was_written_last_is_read_unless_another_is_named(tmp_path: Path) -> None:
    add(new_log(tmp_path, "b"), 100, insert())
    add(new_log(tmp_path, "a"), 200, insert())
    create_run(tmp_path, "c")
    (tmp_path / "lost+found").touch()
    for seconds, run in enumerate("ba"):
        (segment,) = (tmp_path / run).iterdir()
        os.utime(segment, (seconds, seconds))

    assert (places(rows(tmp_path)), places(rows(tmp_path, run="b"))) == ([(200, 0)], [(100, 0)])


def test_several_relations_are_read_together(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    log.append(ITEMS, 100, 0, insert({"extra": "integer"}, extra="1"))
    log.append(ORDERS, 100, 2, insert())
    log.commit(100)
    add(log, 200, insert(), relation=Relation("public", "other"))

    changes = rows(tmp_path, 'public."it.""ems", public.orders, public.quiet')

    assert [(change["op_offset"], change["relation"], change["absent"]) for change in changes] == [
        (0, 'public."it.""ems"', None),
        (2, "public.orders", ["extra"]),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "{log}/none"}, r"can't read the log's directory .*/none: No such file"),
        ({"path": ""}, "no directory"),
        ({"path": "{log}/run-1"}, "holds no run"),
        ({"run": "run-2"}, "no run run-2 in .*; there are: run-1"),
        ({"table": ""}, "option table, '': not schema.table"),
        ({"table": "orders"}, "option table, 'orders': not schema.table"),
        ({"table": "public.none"}, r"no changes of public.none; it has changes of: public.orders"),
        ({"up_to": "0/1"}, r"no changes of public.orders in that part; it has changes of: public.orders"),
        ({"after": "0/FFFF"}, "no changes of public.orders in that part"),
        ({"after": "0/FF", "up_to": "0/100"}, "no changes of public.orders in that part"),
        ({"after": "255"}, "option after: not an LSN: '255'"),
        ({"plugin": "pgoutput"}, "option plugin: no decoder reads frames of 'pgoutput'"),
        ({"tabel": "public.orders"}, "unknown option tabel; there are path, table"),
    ],
)
def test_a_question_without_an_answer_says_what_can_be_asked(
    tmp_path: Path, options: dict[str, str], message: str
) -> None:
    log = new_log(tmp_path)
    add(log, 0x10, insert())
    add(log, 0x1000, insert())
    asked = {"path": "{log}", "table": "public.orders", **options}

    with pytest.raises(LogQueryError, match=message):
        look(LogQuery.parse({name: text.format(log=tmp_path) for name, text in asked.items()}))


def test_errors_reach_the_user_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    add(new_log(tmp_path), 100, insert())

    with pytest.raises(PySparkException, match=r"LogQueryError: .* it has changes of: public\.orders"):
        load(spark, tmp_path, "public.none")
    with pytest.raises(PySparkException, match=r"leave out \.schema"):
        spark.read.format("penstock").schema("id int").option("table", "public.orders").load(
            str(tmp_path)
        ).collect()


def test_a_log_that_shows_no_key_is_readable(spark: SparkSession, tmp_path: Path) -> None:
    add(new_log(tmp_path), 100, insert().replace(b'"pk"', b'"kp"'))

    changes = load(spark, tmp_path)

    assert dict(changes.dtypes)["_penstock_old_key"] == "struct<>"
    assert [row.id for row in changes.collect()] == [7]


@pytest.mark.parametrize(
    ("identities", "key"),
    [
        pytest.param([{"id": "1"}], ("id",), id="primary key"),
        pytest.param([ROW], ("id",), id="replica identity full"),
        pytest.param([{"note": '"a"'}], ("note",), id="using another index"),
        pytest.param([{"note": '"a"'}, {"id": "1", "note": '"a"'}], ("note",), id="changed in between"),
    ],
)
def test_the_key_is_what_all_changes_show(
    tmp_path: Path, identities: list[dict[str, str]], key: tuple[str, ...]
) -> None:
    add(new_log(tmp_path), 100, insert(), *(delete(**identity) for identity in identities))

    assert look(query(tmp_path)).key == key


def test_batches_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = new_log(tmp_path)
    add(log, 100, *[insert(id=str(at)) for at in range(10)])
    for tx_offset in range(200, 205):
        add(log, tx_offset, insert())
    monkeypatch.setattr(changes_source, "_BATCH_ROWS", 4)

    sizes = [len(batch) for batch in batches(tmp_path)]

    assert sizes == [4, 4, 4, 3]
    monkeypatch.setattr(changes_source, "_BATCH_BYTES", 1)
    assert [len(batch) for batch in batches(tmp_path)] == [4, 4, 2, 1, 1, 1, 1, 1]


def test_importing_the_package_loads_no_spark() -> None:
    program = "import sys, penstock.spark; print('pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"


TABLE = """
    CREATE TABLE orders (
        id bigint PRIMARY KEY, amount numeric(12,2), free numeric, ratio double precision, open boolean,
        note text, raw bytea, born date, local timestamp(3), placed timestamptz, data jsonb, tags text[]
    );
    CREATE TABLE others (id int PRIMARY KEY)
"""
WRITES = """
    INSERT INTO orders SELECT n, n * 1.25, 12345678901234567890.10 * n, n / 3.0, n % 2 = 0, 'é "' || n,
        decode(lpad(n::text, 4, '0'), 'hex'), date '2026-02-28' + n, timestamp '2026-01-02 03:04:05.678',
        timestamptz '2026-01-02 03:04:05.123456+05:30', '{"a": [1, 2.50]}', ARRAY['x', 'y,z']
        FROM generate_series(1, 5) AS n;
    INSERT INTO orders (id) VALUES (6);
    INSERT INTO others VALUES (1);
    BEGIN; UPDATE orders SET amount = -0.01, note = NULL WHERE id = 2;
    DELETE FROM orders WHERE id = 3; COMMIT;
    UPDATE orders SET id = 40 WHERE id = 4
"""
NOW = """
    SELECT row.* FROM (
        SELECT max_by(struct(*), struct(_penstock_tx_offset, _penstock_op_offset)) AS row
        FROM changes GROUP BY id
    ) WHERE row._penstock_action <> 'delete' ORDER BY row.id
"""


def test_what_postgres_wrote_is_what_spark_reads(
    spark: SparkSession, postgres: PrivatePostgres, database: str, tmp_path: Path
) -> None:
    postgres.psql(TABLE, database)
    with psycopg.connect(postgres.conninfo(database), autocommit=True, options=PINNED_SESSION) as session:
        session.execute("SELECT pg_create_logical_replication_slot('s', 'wal2json', true)")
        for statement in WRITES.split(";\n"):
            session.execute(statement.encode())
        log_all(new_log(tmp_path), frames(session))
        cursor = session.execute(
            "SELECT *, free::text AS free, data::text AS data, tags::text AS tags FROM orders"
        )
        names = [column.name for column in cursor.description or ()]
        held = sorted((dict(zip(names, row, strict=True)) for row in cursor), key=lambda row: row["id"])

    changes = load(spark, tmp_path)
    changes.createOrReplaceTempView("changes")
    now: pa.Table = spark.sql(NOW).toArrow()

    assert now.drop_columns([name for name in now.column_names if name[0] == "_"]).to_pylist() == held
    assert (len(held), changes.count()) == (5, 6 + 2 + 2)
    assert changes.select("_penstock_lsn").distinct().count() == 4


def frames(session: psycopg.Connection[Any]) -> list[bytes]:
    """What the slot has, with the stream's options."""
    options = replication_options(include_timestamp=True, include_lsn=True, include_pk=True)
    pairs = [part for pair in options.items() for part in pair]
    changes = session.execute(
        "SELECT data FROM pg_logical_slot_get_changes('s', NULL, NULL, VARIADIC %s::text[])", (pairs,)
    )
    return [data.encode() for (data,) in changes]


def log_all(log: ChangeLog, stream: Sequence[bytes]) -> None:
    tx_offset = op_offset = 0
    for frame in stream:
        if frame.startswith((b'{"action":"B"', b'{"action":"C"')):
            tx_offset, op_offset = Wal2Json().transaction(frame).commit_lsn or 0, 0
            if frame.startswith(b'{"action":"C"'):
                log.commit(tx_offset)
        else:
            change = Wal2Json().row(frame)
            log.append(Relation(change.schema, change.table), tx_offset, op_offset, frame)
            op_offset += 2
    log.flush(0.0)

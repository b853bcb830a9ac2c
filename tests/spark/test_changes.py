"""The log's changes as a DataFrame, decoded in the driver and in workers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock.changelog.errors import SegmentUnreadable
from penstock.changelog.index import SegmentRange
from penstock.changelog.log import ChangeLog, LogLimits
from penstock.decoding.rows import Column, DecodeError, LayoutChanged
from penstock.errors import PenstockError
from penstock.lake.jobs import changes as changes_module
from penstock.lake.jobs.changes import ShapeLayout, behind, changes_frame, decoded, is_small, share_out
from penstock.lake.spark.spark_session import plain_errors
from penstock.model.log_offset import BEFORE_ALL, LAST_BEFORE_REAL, OP_INFINITY, LogOffset
from penstock.model.relation import Relation

ORDERS = Relation("public", "orders")
TYPES = {
    "id": "bigint",
    "a": "text",
    "b": "text",
    "amount": "numeric(12,2)",
    "day": "date",
    "seen": "timestamp without time zone",
    "at": "timestamp with time zone",
    "c": "integer",
    "odd": "public.new_type",
}
SECRET = "hunter2"


def layout(*names: str) -> ShapeLayout:
    return ShapeLayout(
        "public.orders", tuple(Column(name, TYPES[name]) for name in names), ("id",), names, plugin="wal2json"
    )


def frame(action: str, row: dict[str, Any] | None = None, old: dict[str, Any] | None = None) -> bytes:
    """A frame as wal2json writes it."""
    content: dict[str, Any] = {"action": action, "schema": "public", "table": "orders"}
    for part, values in (("columns", row), ("identity", old)):
        if values is not None:
            content[part] = [{"name": n, "type": TYPES[n], "value": v} for n, v in values.items()]
    return json.dumps(content).encode()


def insert(**row: Any) -> bytes:
    return frame("I", row)


def update(old_id: int | None = None, **row: Any) -> bytes:
    return frame("U", row, {"id": row["id"] if old_id is None else old_id})


def delete(id: int) -> bytes:
    return frame("D", old={"id": id})


TRUNCATE = frame("T")


def write_log(
    directory: Path, transactions: Mapping[int, Sequence[bytes]], buffer_bytes: int = 64 * 1024
) -> list[SegmentRange]:
    """A log of these transactions, by commit LSN, and the plan for all of it."""
    directory.mkdir()
    log = ChangeLog(directory, LogLimits(min_free_bytes=0, buffer_bytes=buffer_bytes))
    for tx_offset, frames in transactions.items():
        for place, payload in enumerate(frames):
            log.append(ORDERS, tx_offset, 2 * place, payload)
            if log.write_due:
                log.write()
        log.commit(tx_offset)
    log.flush(0.0)
    log.close()
    return log.read_plan([ORDERS], LAST_BEFORE_REAL)


@pytest.fixture(params=["driver", "workers"])
def decoded_in(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where changes are decoded."""
    if request.param == "workers":
        monkeypatch.setattr(changes_module, "LOCAL_BYTES", 0)
    return str(request.param)


def segment_range(size: int, after: LogOffset = BEFORE_ALL, up_to: int = 100) -> SegmentRange:
    return SegmentRange("x", 0, size, after, LogOffset(up_to, OP_INFINITY), ())


@pytest.mark.parametrize(
    ("sizes", "tasks"),
    [
        ([], []),
        ([1], [[1]]),
        ([4, 4, 1], [[4, 4], [1]]),
        ([9, 1, 8], [[9], [1], [8]]),
        ([7, 1, 9], [[7, 1], [9]]),
    ],
)
def test_tasks_share_the_ranges_by_their_bytes(sizes: list[int], tasks: list[list[int]]) -> None:
    shared = share_out([segment_range(size << 20) for size in sizes])

    assert [[part.size_bytes >> 20 for part in task] for task in shared] == tasks


def test_what_a_table_has_is_cut_off_the_ranges() -> None:
    early, late = segment_range(1, up_to=10), segment_range(1, after=LogOffset(20, OP_INFINITY), up_to=30)

    assert behind([early, late], None) == [early, late]
    assert behind([early, late], 5) == [replace(early, after=LogOffset(5, OP_INFINITY)), late]
    assert behind([early, late], 25) == [replace(late, after=LogOffset(25, OP_INFINITY))]
    assert behind([early, late], 30) == []


def test_values_are_the_same_wherever_they_are_decoded(
    spark: SparkSession, tmp_path: Path, decoded_in: str
) -> None:
    names = ("id", "amount", "day", "seen", "at")
    plan = write_log(
        tmp_path / "log",
        {
            10: [insert(id=1, amount=1.5, day="infinity", seen="0044-03-15 12:00:00 BC", at="-infinity")],
            20: [update(1, id=2, amount=None, day="2026-01-02", at="2026-01-02 03:04:05+00"), delete(7)],
        },
    )

    assert is_small(plan) == (decoded_in == "driver")
    with changes_frame(spark, layout(*names), plan) as changes:
        assert dict(changes.dtypes) == {
            "_penstock_tx_offset": "bigint",
            "_penstock_op_offset": "bigint",
            "_penstock_action": "string",
            "_penstock_absent": "array<string>",
            "_penstock_old_key": "struct<id:bigint>",
            "id": "bigint",
            "amount": "decimal(12,2)",
            "day": "date",
            "seen": "timestamp_ntz",
            "at": "timestamp",
        }
        found = changes.orderBy("_penstock_tx_offset", "_penstock_op_offset").toArrow()
    [expected] = decoded(layout(*names), plan)
    assert found.num_rows == 4
    for name in ("_penstock_action", "_penstock_absent", "_penstock_old_key", "id", "amount"):
        assert found[name].to_pylist() == expected[name].to_pylist()
    for name, ticks in (("day", pa.int32()), ("seen", pa.int64()), ("at", pa.int64())):
        assert found[name].cast(ticks).to_pylist() == expected[name].cast(ticks).to_pylist()


def test_batches_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [insert(id=number, a="x" * 50) for number in range(1000)]
    plan = write_log(tmp_path / "log", {10: rows}, buffer_bytes=1000)
    monkeypatch.setattr(changes_module, "_BATCH_ROWS", 100)
    by_rows = [batch.num_rows for batch in decoded(layout("id", "a"), plan)]
    monkeypatch.setattr(changes_module, "_BATCH_BYTES", 5000)
    by_bytes = [batch.num_rows for batch in decoded(layout("id", "a"), plan)]

    assert sum(by_rows) == sum(by_bytes) == 1000
    assert 100 <= max(by_rows) < 110
    assert max(by_bytes) < 50


def read_all(spark: SparkSession, of: ShapeLayout, plan: Iterable[SegmentRange]) -> PenstockError:
    with (
        pytest.raises(PenstockError) as raised,
        plain_errors("/lake/orders"),
        changes_frame(spark, of, list(plan)) as changes,
    ):
        changes.collect()
    return raised.value


@pytest.mark.usefixtures("decoded_in")
def test_an_error_is_the_same_wherever_it_is_raised(spark: SparkSession, tmp_path: Path) -> None:
    plan = write_log(tmp_path / "log", {10: [insert(id=1, a=SECRET, c=SECRET)]})
    narrow = layout("id", "a", "c")

    misfit = read_all(spark, narrow, plan)
    altered = read_all(spark, layout("id", "a"), plan)
    (tmp_path / "log").joinpath(Path(plan[0].path).name).unlink()
    gone = read_all(spark, narrow, plan)

    assert type(misfit) is DecodeError
    assert str(misfit) == "public.orders at 0/A:0: column c (integer): a value does not fit the lake's int"
    assert misfit.__suppress_context__
    assert type(altered) is LayoutChanged
    assert str(altered) == "public.orders at 0/A:0: column c (integer) is new"
    assert type(gone) is SegmentUnreadable
    assert str(gone) == f"can't read {plan[0].path}: No such file or directory"
    for error in (misfit, altered, gone):
        assert SECRET not in str(error.__cause__)

"""After any history and any end of the service, every shape equals the query it stands for."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from structlog.testing import capture_logs

from penstock.local.postgres import PrivatePostgres
from tests.servers.shapes_fixtures import RunOnce
from tests.servers.shapes_site import ShapesSite
from tests.spark.oracle.compare import compare
from tests.spark.oracle.generate import generate
from tests.spark.oracle.kinds import KINDS
from tests.spark.oracle.reduce import only, shrinking, size_of
from tests.spark.oracle.report import report
from tests.spark.oracle.runner import Events, RoundRunner
from tests.spark.oracle.strangers import DEEDS, Deed, Disturbances, Stranger
from tests.spark.oracle.tables import Column, Table
from tests.spark.oracle.world import ShapeOf, Transaction, World

SCHEMA = pa.schema(
    [
        ("id", pa.int32()),
        ("amount", pa.decimal128(12, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("ratio", pa.float64()),
        ("note", pa.string()),
    ]
)
ROWS: list[tuple[Any, ...]] = [
    (1, Decimal("1.50"), datetime(2024, 2, 29, 12, tzinfo=UTC), 0.0, "a"),
    (2, None, None, None, None),
    (3, Decimal("-0.01"), datetime(1969, 12, 31, 23, 59, 59, 999999, UTC), 0.1, ""),
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [15])
def test_every_shape_equals_its_query(
    postgres: PrivatePostgres, database: str, tmp_path: Path, run_once: RunOnce, seed: int
) -> None:
    def once(site: ShapesSite) -> Events:
        with capture_logs() as said:
            assert run_once(site, STALL_S="600") == 0, said
        return said

    round_ = generate(seed, 1)
    runner = RoundRunner(postgres, database, tmp_path, round_, once)
    try:
        differences = runner.run()
    except AssertionError:
        print(report(round_, [], runner.history))
        raise
    assert not differences, report(round_, differences, runner.history)
    assert runner.committed > 20, "most transactions failed: the round says little"
    assert len(runner.tricks) > 1, "in transactions that were committed; how many fail depends on the moment"
    assert any(life.disturbed for life in round_.lives), "a SIGHUP"
    assert any(life.strangers for life in round_.lives), "foreign commits"


def _written(directory: Path, rows: Sequence[tuple[Any, ...]], names: Sequence[str] = ()) -> Path:
    path = directory / "table"
    columns = [list(column) for column in zip(*rows, strict=True)]
    table = pa.table(columns, schema=SCHEMA)
    write_deltalake(str(path), table.rename_columns(list(names or SCHEMA.names)))
    return path


def test_a_table_that_is_equal_passes_in_any_order(tmp_path: Path) -> None:
    path = _written(tmp_path, ROWS)
    assert compare("shape", path, SCHEMA.names, ROWS[::-1]) is None


def _changed(index: int, column: int, value: object) -> Callable[[list[tuple[Any, ...]]], object]:
    def change(rows: list[tuple[Any, ...]]) -> None:
        row = list(rows[index])
        row[column] = value
        rows[index] = tuple(row)

    return change


@pytest.mark.parametrize(
    ("planted", "missing", "extra"),
    [
        pytest.param(lambda rows: rows.pop(1), 1, 0, id="a row is lost"),
        pytest.param(lambda rows: rows.append(rows[0]), 0, 1, id="a row is there twice"),
        pytest.param(_changed(0, 1, Decimal("1.51")), 1, 1, id="a stale number"),
        pytest.param(_changed(2, 4, None), 1, 1, id="null for an empty text"),
        pytest.param(_changed(0, 3, -0.0), 1, 1, id="the other zero"),
        pytest.param(
            _changed(2, 2, datetime(1969, 12, 31, 23, 59, 59, 999998, UTC)), 1, 1, id="a microsecond"
        ),
        pytest.param(_changed(1, 0, 4), 1, 1, id="another key"),
    ],
)
def test_a_planted_bug_is_reported(
    tmp_path: Path, planted: Callable[[list[tuple[Any, ...]]], object], missing: int, extra: int
) -> None:
    rows = list(ROWS)
    planted(rows)
    found = compare("shape", _written(tmp_path, rows), SCHEMA.names, ROWS)
    assert found is not None
    assert (len(found.missing), len(found.extra)) == (missing, extra)


def test_another_column_and_a_missing_table_are_reported(tmp_path: Path) -> None:
    path = _written(tmp_path, ROWS, ["id", "amount", "at", "ratio", "_penstock_note"])
    assert compare("shape", path, SCHEMA.names, ROWS) is not None
    assert compare("shape", tmp_path / "nowhere", SCHEMA.names, []) is not None


@pytest.mark.parametrize(
    ("deed", "changes_rows"),
    [
        ("RESTORE", True),
        ("DELETE", True),
        ("UPDATE", True),
        ("OPTIMIZE", False),
        ("SET TBLPROPERTIES", False),
    ],
)
def test_strangers_know_what_they_do(tmp_path: Path, deed: Deed, changes_rows: bool) -> None:
    path = _written(tmp_path, ROWS)
    write_deltalake(str(path), pa.table([[each] for each in ROWS[0]], schema=SCHEMA), mode="append")
    assert Stranger(deed, 0).act(path, "note") is changes_rows
    assert DeltaTable(str(path)).version() == 2


def test_what_strangers_did_has_to_be_noticed_and_nothing_else() -> None:
    needed = {"event": "snapshot_needed", "shape": "a"}
    foreign = {"event": "foreign_commit", "shape": "a"}

    def settle(events: Events, *, changed_rows: bool) -> None:
        found = Disturbances()
        found.note("a", changed_rows=changed_rows, events=1)
        found.settle(events)

    settle([{"event": "started"}, needed], changed_rows=True)
    settle([foreign, needed], changed_rows=False)
    with pytest.raises(AssertionError, match="nobody noticed"):
        settle([needed, {"event": "started"}], changed_rows=True)
    with pytest.raises(AssertionError, match="had changed no row"):
        settle([needed, foreign], changed_rows=False)


def test_a_seed_is_a_round_with_everything_in_it() -> None:
    round_ = generate(1, 16)
    assert generate(1, 3) == generate(1, 3)
    tables = [table for world in round_.worlds for table in world.tables]
    shapes = [shape for world in round_.worlds for shape in world.shapes]
    assert {column.kind for table in tables for column in table.columns} == set(KINDS)
    for wanted in ("full_identity", "by_index", "leaves", "nested_leaf"):
        assert {bool(getattr(table, wanted)) for table in tables} == {True, False}
    assert (
        {shape.where is None for shape in shapes}
        == {shape.columns is None for shape in shapes}
        == {True, False}
    )
    reloaded = [
        (before, after)
        for world in round_.worlds
        for before, after in zip_longest(world.shapes, world.reloaded)
    ]
    assert any(after is None for _, after in reloaded)
    assert any(before is None for before, _ in reloaded)
    both = [(before, after) for before, after in reloaded if before is not None and after is not None]
    assert {(before == after, before.holds_as(after)) for before, after in both} == {
        (True, True),
        (False, True),
        (False, False),
    }
    assert sorted(each.deed for life in round_.lives for each in life.strangers) == sorted(DEEDS)
    assert [life.ending == "fault" for life in round_.lives if life.disturbed] == [False]
    statements = "\n".join(
        statement
        for world in round_.worlds
        for writer in world.writers
        for transaction in writer
        for statement in transaction.statements
    )
    for wanted in (
        r'^UPDATE \w+ SET "id" = .* AND NOT EXISTS',
        r"^TRUNCATE \w+\n(.*\n)*INSERT",
        r"^TRUNCATE \w+, ",
        r"^CREATE TABLE \w+ PARTITION OF",
        r"^ROLLBACK TO",
        r"^DELETE",
        r"repeat\(",
        r"^TRUNCATE \w+\nALTER TABLE \w+ SET UNLOGGED",
        r"^ALTER TABLE \w+ RENAME TO",
        r"ATTACH PARTITION \w+ FOR",
        r"DETACH PARTITION",
        r"^DROP TABLE",
        r"^CREATE TABLE \w+_91 AS",
    ):
        assert re.search(wanted, statements, re.MULTILINE), wanted


def test_a_failing_world_is_made_as_small_as_its_bug() -> None:
    table = Table("t1", (Column("id", "int", True), Column("v", "text")), 1)
    other = Table("t0", (Column("id", "int", True), Column("v", "text")), 1)
    noise = Transaction(tuple(f"INSERT INTO t0 VALUES ({key}, 'x')" for key in range(5)))
    filler = Transaction(tuple(f"INSERT INTO t1 VALUES ({key}, 'x')" for key in range(9)))
    culprits = ('UPDATE t1 SET "id" = 1', "DELETE FROM t1")
    world = World(
        (other, table),
        (ShapeOf(0), ShapeOf(1)),
        (
            (noise, filler, Transaction(culprits[:1])),
            (Transaction(("TRUNCATE t0, t1",)), Transaction(culprits[1:]), filler),
        ),
        (0, 1),
    )

    def first_failing(worlds: Sequence[World]) -> int | None:
        for index, tried in enumerate(worlds):
            said = {s for writer in tried.writers for each in writer for s in each.statements}
            if said.issuperset(culprits):
                return index
        return None

    alone = only(world, 1)
    assert alone.tables == (table,)
    assert "t0" not in repr(alone)
    *_, smallest = shrinking(alone, first_failing, batch=3)
    assert size_of(smallest) == len(culprits)

"""Every type of docs/types.md, from Postgres to a Delta table as others read it: copied, and streamed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from penstock.decoding.plugins import decoder_for
from penstock.decoding.rows import Column
from penstock.local.postgres import PrivatePostgres
from penstock.model.relation import Relation
from penstock.postgres.catalog.table_catalog import ShapeCatalog
from penstock.postgres.connection import PINNED_SESSION
from tests.servers.shapes_site import ShapesSite
from tests.spark.conftest import RunOnce
from tests.type_cases import ASK, CASES, SETUP, Case, is_lost, plain

TABLES = ("copied", "streamed")
ROWS = 1 + max(len(case.values) for case in CASES.values())
GENERATED = "DEFAULT"


class Cell(NamedTuple):
    """A column of the table that has all types."""

    name: str
    declared: str
    case: Case

    def value(self, row: int) -> str:
        """What is inserted, as SQL; null behind the last one."""
        values = list(self.case.values)
        if values == [GENERATED]:
            return GENERATED
        return values[row - 1] if row <= len(values) else "NULL"

    def expected(self, row: int, tick: int | None) -> object:
        """What the lake is to hold."""
        values = list(self.case.values.values())
        if list(self.case.values) == [GENERATED]:
            return row * values[0]
        if row > len(values):
            return None
        return tick if values[row - 1] is ASK else values[row - 1]


CELLS = [Cell(f"c{place}", declared, case) for place, (declared, case) in enumerate(CASES.items())]


def insert_into(site: ShapesSite, table: str) -> None:
    with psycopg.connect(site.postgres.conninfo(site.database, options=PINNED_SESSION)) as session:
        for row in range(1, ROWS + 1):
            values = ", ".join([str(row), *(cell.value(row) for cell in CELLS)])
            session.execute(f"INSERT INTO {table} VALUES ({values})".encode())


def ticks(site: ShapesSite, cell: Cell) -> list[int | None]:
    """What Postgres counts for a date or time, by row."""
    if not cell.case.ticks:
        return [None] * ROWS
    rows = site.sql(
        f"SELECT CASE WHEN isfinite(v) THEN {cell.case.ticks} END"
        f" FROM (SELECT id, {cell.name} AS v FROM copied) t ORDER BY id"
    )
    return [tick for (tick,) in rows]


def in_the_lake(site: ShapesSite, table: str) -> pa.Table:
    return DeltaTable(str(site.table(table))).to_pyarrow_table().sort_by("id")


async def columns_of(site: ShapesSite) -> dict[str, Column]:
    async def connect() -> psycopg.AsyncConnection:
        conninfo = site.postgres.conninfo(site.database, options=PINNED_SESSION)
        return await psycopg.AsyncConnection.connect(conninfo, autocommit=True)

    catalog, table = ShapeCatalog(connect, decoder_for("wal2json")), Relation("public", "copied")
    try:
        facts = (await catalog.facts([table]))[table]
    finally:
        await catalog.close()
    return {column.name: column.column for column in facts.columns}


@pytest.fixture
def site(postgres: PrivatePostgres, database: str, tmp_path: Path) -> ShapesSite:
    site = ShapesSite(postgres, database, tmp_path)
    site.sql(SETUP)
    columns = ", ".join(f"{cell.name} {cell.declared}" for cell in CELLS)
    for table in TABLES:
        site.sql(f"CREATE TABLE {table} (id integer PRIMARY KEY, {columns})")
    site.write_file(*(f'name = "{table}"\ntable = "public.{table}"' for table in TABLES))
    return site


def test_every_type_lands(site: ShapesSite, run_once: RunOnce) -> None:
    insert_into(site, "copied")
    assert run_once(site) == 0
    insert_into(site, "streamed")
    assert run_once(site) == 0

    copied, streamed = (in_the_lake(site, table) for table in TABLES)
    columns = asyncio.run(columns_of(site))
    wrong = {}
    for cell in CELLS:
        counted = ticks(site, cell)
        expected = [repr(cell.expected(row, counted[row - 1])) for row in range(1, ROWS + 1)]
        through_wal2json = ["None" if is_lost(columns[cell.name], text) else text for text in expected]
        found = (plain(copied[cell.name]), plain(streamed[cell.name]))
        if found != (expected, through_wal2json):
            wrong[cell.declared] = (found, expected)
    assert wrong == {}
    assert streamed.schema == copied.schema

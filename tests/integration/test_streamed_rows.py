"""The server's digest of a table against that of its changes, over every kind of value."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from psycopg.conninfo import conninfo_to_dict

from penstock.decoding.wal2json import Wal2Json, replication_options
from penstock.local.postgres import PrivatePostgres
from penstock.model.change import Action
from penstock.model.relation import Relation
from penstock.postgres.connection import PINNED_SESSION, QUALIFIED_NAMES
from penstock.postgres.snapshot.export import SnapshotStale, export_snapshot
from penstock.shapes.following.streamed_rows import Digest, StreamedRows

T = Relation("public", "t")
TABLE = """
CREATE TYPE mood AS ENUM ('sad', 'glad'); CREATE TYPE pair AS (a int, b text);
CREATE DOMAIN hexes AS bytea; CREATE DOMAIN yes AS bool;
CREATE TABLE t (
    id bigint PRIMARY KEY, s smallint, b bool, y yes, r real, d double precision, n numeric, m numeric(10,2),
    c char(5), v varchar(9), x text, raw bytea, h hexes, j json, jb jsonb, day date, at timestamptz,
    i interval, bits bit(3), ip inet, u uuid, mood mood, pair pair, ints int[], texts text[], span int4range,
    k regclass, made int GENERATED ALWAYS AS (s + 1) STORED);
"""
ROWS = r"""
INSERT INTO t (id) SELECT g FROM generate_series(1, 3) g;
INSERT INTO t VALUES (10, -1, true, false, 0.1, 1e-300, 12345678901234567890.0123456789, 1.50, 'ab', 'é',
    E'q"\\\n\t€', '\x00ff', '\x01', '{"a": 1}', '{"b": [null]}', '2020-01-01', '2020-01-01 12:00:00.5+02',
    '1 day -2:00:00', B'101', '10.0.0.1/8', '00000000-0000-0000-0000-000000000001', 'glad', '(,x)',
    '{1,NULL}', ARRAY['a,b', NULL, '"'], '[1,3)', 't'::regclass);
INSERT INTO t (id, pair) VALUES (11, '(,)');
INSERT INTO t (id, x) VALUES (12, repeat('toast', 100000));
UPDATE t SET s = 5 WHERE id IN (1, 12); UPDATE t SET id = 20 WHERE id = 2; DELETE FROM t WHERE id = 3;
"""

NOT_CHANGES = (Action.BEGIN, Action.COMMIT, Action.MESSAGE)


@pytest.fixture
def slot(postgres: PrivatePostgres, database: str) -> Iterator[str]:
    name = f"rows_{database}"
    postgres.psql(f"SELECT pg_create_logical_replication_slot('{name}', 'wal2json')", database)
    yield name
    postgres.psql(f"SELECT pg_drop_replication_slot('{name}')", database)


def streamed(postgres: PrivatePostgres, database: str, slot: str) -> StreamedRows:
    options = replication_options(include_timestamp=False, include_lsn=False, include_pk=True)
    words = ", ".join(f"'{word}'" for option in options.items() for word in option)
    pins = [pin.split("=", 1) for pin in f"{PINNED_SESSION} {QUALIFIED_NAMES}".replace("-c ", "").split()]
    session = "; ".join(f"SET {name} = '{value}'" for name, value in pins)
    rows = StreamedRows(Wal2Json(), 0)
    query = f"{session}; SELECT data FROM pg_logical_slot_get_changes('{slot}', NULL, NULL, {words})"
    for (data,) in postgres.psql(query, database):
        if Wal2Json().action(data.encode()) not in NOT_CHANGES and '"table":"t"' in data:
            rows.take(data.encode())
    rows.committed(1)
    return rows


async def content(postgres: PrivatePostgres, database: str) -> tuple[Digest, int]:
    parameters = {**conninfo_to_dict(postgres.conninfo(database)), "options": QUALIFIED_NAMES}
    async with export_snapshot(parameters, plugin="wal2json") as exported:
        with pytest.raises(SnapshotStale):
            await exported.content(Relation("public", "no"))
        found = await exported.content(T)
        assert found.cut_lsn == exported.cut_lsn
    return Digest(found.rows, found.total), found.filenode


async def test_the_server_hashes_what_the_stream_has(
    postgres: PrivatePostgres, database: str, slot: str
) -> None:
    postgres.psql(TABLE + ROWS, database)
    digest, file = await content(postgres, database)
    assert digest.rows == 5
    assert streamed(postgres, database, slot).before(2) == digest

    postgres.psql("TRUNCATE t; INSERT INTO t (id, x) VALUES (1, 'one'), (2, 'two')", database)
    digest, new_file = await content(postgres, database)
    assert new_file != file
    assert streamed(postgres, database, slot).before(2) == digest

    postgres.psql(
        "BEGIN; TRUNCATE t; INSERT INTO t (id, x) VALUES (1, 'one'); ALTER TABLE t SET UNLOGGED;"
        " UPDATE t SET x = 'two'; ALTER TABLE t SET LOGGED; COMMIT",
        database,
    )
    digest, _ = await content(postgres, database)
    found = streamed(postgres, database, slot).before(2)
    assert found is not None
    assert (found.rows, found.total == digest.total) == (digest.rows, False)

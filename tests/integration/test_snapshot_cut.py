"""The snapshot: an exact cut through concurrent writers, and every row of it exactly once."""

from __future__ import annotations

import asyncio
import json
import random
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from typing import Any, NamedTuple

import psycopg
import pytest

from penstock.errors import ConnectionFailed, LineLost, NoSpareSlot, RoleLacksReplication
from penstock.local.postgres import PrivatePostgres
from penstock.model.lsn import parse_lsn
from penstock.model.relation import Relation
from penstock.postgres.connection import connect, connection_parameters
from penstock.postgres.snapshot.copying import CopySession, copy_sessions
from penstock.postgres.snapshot.export import (
    CHUNK_BYTES,
    ExportedSnapshot,
    SnapshotPart,
    SnapshotStale,
    TableUnreadable,
    connect_for_copy,
    copy_part,
    export_snapshot,
)
from penstock.postgres.snapshot.open_transactions import open_transactions, waits_for

T = Relation("public", "t")
JOURNAL = Relation("public", "journal")
SLOT = "permanent_{}"
DEADLINE_S = 30.0
TIME_LIMITS = """
SELECT name FROM pg_settings WHERE name IN ('statement_timeout', 'lock_timeout',
'idle_in_transaction_session_timeout', 'idle_session_timeout', 'transaction_timeout')
"""
TEMPORARY = "SELECT slot_name FROM pg_replication_slots WHERE temporary"
WAITS_FOR_A_TRANSACTION = (
    "SELECT transactionid::text FROM pg_locks JOIN pg_replication_slots ON pid = active_pid"
    " WHERE temporary AND NOT granted AND locktype = 'transactionid'"
)


class Site(NamedTuple):
    """A database, and how to connect to it."""

    postgres: PrivatePostgres
    database: str

    @property
    def parameters(self) -> dict[str, Any]:
        given = connection_parameters(connect_timeout_s=5, silence_limit_s=10, role="test")
        return given | {"host": "127.0.0.1", "port": self.postgres.port, "dbname": self.database}

    @property
    def slot(self) -> str:
        return SLOT.format(self.database)

    def psql(self, sql: str) -> list[tuple[Any, ...]]:
        return self.postgres.psql(sql, self.database)

    def session(self, **over: Any) -> psycopg.Connection:
        return psycopg.connect(self.postgres.conninfo(self.database, **over))


@pytest.fixture
def site(postgres: PrivatePostgres, database: str, monkeypatch: pytest.MonkeyPatch) -> Site:
    for name, value in postgres.env(database).items():
        monkeypatch.setenv(name, value)
    site = Site(postgres, database)
    site.psql("CREATE TABLE t (id int PRIMARY KEY, v int)")
    return site


def copied(snapshot_name: str, part: SnapshotPart, columns: Sequence[str]) -> list[tuple[str, ...]]:
    with closing(connect_for_copy()) as connection:
        text = b"".join(copy_part(connection, snapshot_name, columns, part)).decode()
    return [tuple(line.split("\t")) for line in text.splitlines()]


async def rows_of(
    snapshot: ExportedSnapshot, relation: Relation, *columns: str, part_bytes: int = 1 << 30
) -> list[tuple[str, ...]]:
    parts = await snapshot.parts([relation], part_bytes=part_bytes)
    rows = []
    for part in parts:
        rows += await asyncio.to_thread(copied, snapshot.name, part, columns)
    return rows


async def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + DEADLINE_S
    while not (found := await asyncio.to_thread(condition)):
        assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what}"
        await asyncio.sleep(0.02)
    return found


class Transaction(NamedTuple):
    commit_lsn: int
    changes: list[dict[str, Any]]


def streamed(site: Site) -> list[Transaction]:
    """What the permanent slot emits, from its start."""
    transactions = []
    for (text,) in site.psql(
        f"SELECT data FROM pg_logical_slot_peek_changes('{site.slot}', NULL, NULL,"
        " 'format-version', '2', 'include-lsn', '1', 'include-transaction', '1')"
    ):
        frame = json.loads(text)
        if frame["action"] == "B":
            transactions.append(Transaction(parse_lsn(frame["lsn"]), []))
        elif frame["action"] != "C":
            transactions[-1].changes.append(frame)
    return transactions


def values(cells: list[dict[str, Any]]) -> dict[str, Any]:
    return {cell["name"]: cell["value"] for cell in cells}


def folded(rows: dict[int, int], transactions: list[Transaction]) -> dict[int, int]:
    """The table after these transactions."""
    table = dict(rows)
    for change in (change for each in transactions for change in each.changes if change["table"] == "t"):
        if change["action"] in "UD":
            del table[values(change["identity"])["id"]]
        if change["action"] in "UI":
            row = values(change["columns"])
            table[row["id"]] = row["v"]
    return table


def write_until(site: Site, stop: threading.Event, seed: int, errors: list[Exception]) -> None:
    """Transactions over keys of one's own; each that commits leaves its number in the journal."""
    choose = random.Random(seed)
    try:
        with site.session() as connection:
            number = seed * 1_000_000
            while not stop.is_set():
                number += 1
                for _ in range(choose.randint(1, 6)):
                    key = choose.randrange(50) + seed * 100
                    statement = choose.choice(
                        [
                            "INSERT INTO t VALUES (%(id)s, %(v)s) ON CONFLICT (id) DO UPDATE SET v = %(v)s",
                            "UPDATE t SET v = %(v)s WHERE id = %(id)s",
                            "DELETE FROM t WHERE id = %(id)s",
                        ]
                    )
                    connection.execute(statement, {"id": key, "v": number})
                connection.execute("INSERT INTO journal VALUES (%s)", (number,))
                connection.rollback() if choose.random() < 0.1 else connection.commit()
    except Exception as error:
        errors.append(error)


@contextmanager
def writers(site: Site, count: int = 3) -> Iterator[None]:
    stop, errors = threading.Event(), list[Exception]()
    threads = [threading.Thread(target=write_until, args=(site, stop, seed, errors)) for seed in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not errors


async def test_the_cut_is_exact_among_concurrent_writers(site: Site) -> None:
    site.psql("CREATE TABLE journal (number int PRIMARY KEY)")
    site.psql(f"SELECT pg_create_logical_replication_slot('{site.slot}', 'wal2json')")
    slots = "SELECT slot_name, restart_lsn, confirmed_flush_lsn FROM pg_replication_slots WHERE NOT temporary"
    before = site.psql(slots)
    taken = []
    with writers(site):
        for _ in range(4):
            async with export_snapshot(site.parameters, plugin="wal2json") as snapshot:
                journal = await rows_of(snapshot, JOURNAL, "number")
                rows = await rows_of(snapshot, T, "id", "v", part_bytes=1)
                taken.append((snapshot.cut_lsn, journal, rows))
    assert site.psql(slots) == before
    transactions = streamed(site)
    final = dict(site.psql("SELECT id, v FROM t"))
    for cut, journal, rows in taken:
        below = [each for each in transactions if each.commit_lsn < cut]
        numbers = [
            str(values(change["columns"])["number"])
            for each in below
            for change in each.changes
            if change["table"] == "journal"
        ]
        assert numbers, "the writers were at work before the cut"
        assert sorted(number for (number,) in journal) == sorted(numbers)
        table = {int(key): int(value) for key, value in rows}
        assert len(table) == len(rows)
        assert folded({}, below) == table
        assert folded(table, transactions[len(below) :]) == final
    assert taken[0][0] < taken[-1][0] <= transactions[-1].commit_lsn


@asynccontextmanager
async def commit_that_waits_for_a_standby(site: Site, key: int) -> AsyncIterator[Callable[[], None]]:
    """A commit of row `key` that hangs until what this yields is called."""
    hanging = site.session()
    hanging.execute("SET synchronous_commit = on")
    hanging.commit()
    hanging.execute(f"INSERT INTO t VALUES ({key}, 0)")
    pid = hanging.info.backend_pid

    def let_go() -> None:
        site.psql(f"SELECT pg_cancel_backend({pid})")

    # Postgres warns that the standby hasn't got it; it is committed all the same.
    commit = asyncio.create_task(asyncio.to_thread(hanging.commit))
    try:
        in_wait = f"SELECT pid FROM pg_stat_activity WHERE pid = {pid} AND wait_event = 'SyncRep'"
        await until(lambda: site.psql(in_wait), "the commit waits")
        yield let_go
    finally:
        let_go()
        await commit
        hanging.close()


@pytest.fixture
def absent_standby(site: Site) -> Iterator[None]:
    """A synchronous standby that isn't there; only sessions that ask for it wait for it."""
    settings = {"synchronous_commit": "local", "synchronous_standby_names": "nobody"}
    for name, value in settings.items():
        site.postgres.set(name, value)
    yield
    site.postgres.set("synchronous_standby_names", "")
    site.postgres.set("synchronous_commit", "on")


@pytest.mark.usefixtures("absent_standby")
async def test_a_commit_that_is_streamed_but_not_yet_visible_is_waited_for(site: Site) -> None:
    site.psql(f"SELECT pg_create_logical_replication_slot('{site.slot}', 'wal2json')")
    async with commit_that_waits_for_a_standby(site, 1) as let_go:
        (transaction,) = streamed(site)
        assert site.psql("SELECT id FROM t") == []
        async with exporting(site) as export:
            await until(lambda: site.psql(WAITS_FOR_A_TRANSACTION), "the export waits")
            assert not export.done()
            let_go()
            snapshot = await export
            assert transaction.commit_lsn < snapshot.cut_lsn
            assert await rows_of(snapshot, T, "id") == [("1",)]


@pytest.mark.usefixtures("absent_standby")
async def test_a_commit_that_begins_to_hang_during_the_export_is_below_the_cut_and_in_it(site: Site) -> None:
    """The export waits twice: for what was open at its start, and for what was open when that had ended."""
    site.psql(f"SELECT pg_create_logical_replication_slot('{site.slot}', 'wal2json')")
    with site.session() as first, site.session() as second:
        first.execute("INSERT INTO t VALUES (1, 0)")
        async with exporting(site) as export:
            waits_for_first = await until(
                lambda: site.psql(WAITS_FOR_A_TRANSACTION), "it waits for the first"
            )
            second.execute("INSERT INTO t VALUES (2, 0)")
            first.commit()
            await until(
                lambda: site.psql(WAITS_FOR_A_TRANSACTION) not in ([], waits_for_first), "and for the second"
            )
            async with commit_that_waits_for_a_standby(site, 3):
                second.commit()
                snapshot = await export
                assert site.psql("SELECT id FROM t ORDER BY id") == [(1,), (2,)]
                below = [each for each in streamed(site) if each.commit_lsn < snapshot.cut_lsn]
                assert folded({}, below) == {1: 0, 2: 0, 3: 0}
                assert await rows_of(snapshot, T, "id") == [("1",), ("2",), ("3",)]


@asynccontextmanager
async def exporting(site: Site) -> AsyncIterator[asyncio.Task[ExportedSnapshot]]:
    """An export under way in a task; the snapshot it gives lives as long as this."""
    context = export_snapshot(site.parameters, plugin="wal2json")
    task = asyncio.create_task(context.__aenter__())
    try:
        yield task
    finally:
        if task.done() and not task.cancelled() and task.exception() is None:
            await context.__aexit__(None, None, None)


async def test_an_open_write_transaction_is_waited_for(site: Site) -> None:
    with site.session() as writer:
        writer.execute("INSERT INTO t VALUES (1, 1)")
        async with exporting(site) as export:
            await until(lambda: site.psql(WAITS_FOR_A_TRANSACTION), "the export waits")
            assert not export.done()
            writer.commit()
            snapshot = await asyncio.wait_for(export, DEADLINE_S)
            assert await rows_of(snapshot, T, "id", "v") == [("1", "1")]


async def test_a_cancelled_export_leaves_nothing_even_while_the_writer_goes_on(site: Site) -> None:
    with site.session() as writer:
        writer.execute("INSERT INTO t VALUES (1, 1)")
        async with exporting(site) as export:
            await until(lambda: site.psql(WAITS_FOR_A_TRANSACTION), "the export waits")
            export.cancel()
            began = time.monotonic()
            with pytest.raises(asyncio.CancelledError):
                await export
            assert time.monotonic() - began < 10
        await nothing_is_left(site)


async def nothing_is_left(site: Site) -> None:
    ours = "SELECT pid FROM pg_stat_activity WHERE application_name = 'penstock test'"
    await until(lambda: not site.psql(TEMPORARY) and not site.psql(ours), "slot and sessions are gone")


async def test_the_slot_is_needed_only_for_the_export_and_all_ends_with_an_exception(site: Site) -> None:
    site.psql("INSERT INTO t VALUES (1, 1)")

    async def use() -> None:
        async with export_snapshot(site.parameters, plugin="wal2json") as snapshot:
            await until(lambda: not site.psql(TEMPORARY), "the temporary slot is gone")
            assert await rows_of(snapshot, T, "id") == [("1",)]
            raise KeyError("the user's own")

    with pytest.raises(KeyError):
        await use()
    await nothing_is_left(site)


async def test_time_limits_for_ordinary_sessions_do_not_end_the_holder(site: Site) -> None:
    for setting in ("idle_in_transaction_session_timeout", "idle_session_timeout", "statement_timeout"):
        site.psql(f"ALTER DATABASE \"{site.database}\" SET {setting} = '200ms'")
    async with export_snapshot(site.parameters, plugin="wal2json") as snapshot:
        with closing(site.session()) as ordinary:
            pid = ordinary.info.backend_pid
            lives = f"SELECT pid FROM pg_stat_activity WHERE pid = {pid}"
            await until(lambda: not site.psql(lives), "an ordinary session is ended")
        assert await snapshot.parts([T]) == [SnapshotPart(T, 0, None)]


async def test_no_time_limit_ends_a_session_that_copies(site: Site) -> None:
    """Whatever limits this server knows, but for the one on waiting for the table, which is ours."""
    known = [name for (name,) in site.psql(TIME_LIMITS)]
    for setting in known:
        site.psql(f"ALTER DATABASE \"{site.database}\" SET {setting} = '60s'")
    async with export_snapshot(site.parameters, plugin="wal2json") as snapshot:
        (part,) = await snapshot.parts([T])
        with closing(connect_for_copy()) as connection:
            list(copy_part(connection, snapshot.name, ["id"], part))
            left = {name: connection.execute(f"SHOW {name}").fetchone() for name in known}

    assert "statement_timeout" in left
    assert left == dict.fromkeys(known, ("0",)) | {"lock_timeout": ("3s",)}


async def test_parts_hold_every_row_once_while_rows_move_and_the_table_grows(site: Site) -> None:
    site.psql(
        "ALTER TABLE t ADD pad text;"
        " INSERT INTO t SELECT g, g, repeat('x', 300) FROM generate_series(1, 3000) g"
    )
    site.psql("DELETE FROM t WHERE id % 7 = 0; UPDATE t SET v = -v WHERE id % 3 = 0")
    expected = site.psql("SELECT id::text, v::text FROM t ORDER BY t.id")
    async with export_snapshot(site.parameters, plugin="wal2json") as snapshot:
        parts = await snapshot.parts([T], part_bytes=10 * 8192)
        assert len(parts) > 10
        assert parts[0].first_block == 0
        assert parts[-1].end_block is None
        assert [part.end_block for part in parts[:-1]] == [part.first_block for part in parts[1:]]
        rows = []
        for number, part in enumerate(parts):
            site.psql(f"UPDATE t SET v = v + 1 WHERE id % {len(parts)} = {number}")
            site.psql(f"INSERT INTO t SELECT 10000 * {number + 1} + g, 0, '' FROM generate_series(1, 500) g")
            rows += await asyncio.to_thread(copied, snapshot.name, part, ["id", "v"])
    assert sorted(rows, key=lambda row: int(row[0])) == expected


async def test_long_values_make_parts_of_fewer_rows(site: Site) -> None:
    """A row has a pointer of 18 bytes to a value that is stored elsewhere."""
    long = "(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 300 + 0 * g))"
    site.psql(f"CREATE TABLE wide AS SELECT g, {long} AS v FROM generate_series(1, 1000) g")
    wide = Relation("public", "wide")
    async with export_snapshot(site.parameters, plugin="wal2json") as snapshot:
        parts = await snapshot.parts([wide], part_bytes=2 << 20)
        sizes = [len(await asyncio.to_thread(copied, snapshot.name, part, ["g"])) for part in parts]
    assert len(parts) > 3
    assert sum(sizes) == 1000
    assert max(sizes) < 400


async def test_chunks_are_whole_lines_of_bounded_size(site: Site) -> None:
    site.psql("CREATE TABLE wide AS SELECT g, repeat(md5(g::text), 4000) FROM generate_series(1, 100) g")
    async with export_snapshot(site.parameters, plugin="wal2json") as snapshot:
        (part,) = await snapshot.parts([Relation("public", "wide")])
        with closing(connect_for_copy()) as connection:
            chunks = list(copy_part(connection, snapshot.name, ["g", "repeat"], part))
    assert len(chunks) > 3
    assert all(chunk.endswith(b"\n") for chunk in chunks)
    assert all(len(chunk) < CHUNK_BYTES + 130_000 for chunk in chunks)
    assert sum(chunk.count(b"\n") for chunk in chunks) == 100


async def test_a_copy_of_which_nobody_takes_the_rows_is_seen(site: Site) -> None:
    site.psql("CREATE TABLE wide AS SELECT g, repeat(md5(g::text), 4000) FROM generate_series(1, 400) g")

    async def sessions(name: str) -> list[CopySession]:
        async with await connect(site.parameters) as connection:
            return await copy_sessions(connection, name)

    async def until_stuck(name: str) -> CopySession:
        async with asyncio.timeout(30):
            while True:
                (before,) = await sessions(name)
                (after,) = await sessions(name)
                if before == after and after.waits_for_client:
                    return after
                await asyncio.sleep(0.05)

    async with export_snapshot(site.parameters, plugin="wal2json") as snapshot:
        (part,) = await snapshot.parts([Relation("public", "wide")], part_bytes=1 << 30)
        with closing(connect_for_copy()) as connection:
            chunks = copy_part(connection, snapshot.name, ["g", "repeat"], part)
            assert next(chunks)
            assert await sessions("another") == []

            stuck = await until_stuck(snapshot.name)
            assert stuck.pid == connection.info.backend_pid
            assert (stuck.bytes_sent or 0) > 0
            assert next(chunks)
            assert next(chunks)
            later = await until_stuck(snapshot.name)
            assert (later.bytes_sent or 0) > (stuck.bytes_sent or 0)
            assert (later.rows_sent or 0) > (stuck.rows_sent or 0)

            assert len(list(chunks)) > 1
        assert await sessions(snapshot.name) == []


@pytest.mark.parametrize("end", ["pg_terminate_backend", "pg_cancel_backend"])
async def test_a_copy_that_is_ended_half_way_is_an_error_and_no_short_part(site: Site, end: str) -> None:
    site.psql("CREATE TABLE wide AS SELECT g, repeat(md5(g::text), 4000) FROM generate_series(1, 400) g")
    async with export_snapshot(site.parameters, plugin="wal2json") as snapshot:
        (part,) = await snapshot.parts([Relation("public", "wide")], part_bytes=1 << 30)
        with closing(connect_for_copy()) as connection:
            chunks = copy_part(connection, snapshot.name, ["g", "repeat"], part)
            assert next(chunks)
            site.psql(f"SELECT {end}({connection.info.backend_pid})")
            with pytest.raises(LineLost, match=r"public\.wide: "):
                list(chunks)


async def test_an_empty_table_has_one_part_without_rows(site: Site) -> None:
    async with export_snapshot(site.parameters, plugin="wal2json") as snapshot:
        assert await snapshot.parts([]) == []
        assert await snapshot.parts([T]) == [SnapshotPart(T, 0, None)]
        assert await rows_of(snapshot, T, "id") == []


async def test_leaves_and_heirs_are_copied_each_for_itself(site: Site) -> None:
    site.psql("""
        CREATE SCHEMA "Own";
        CREATE TABLE "Own"."Or""ders" ("Key" int, "a b" text, "c%" int GENERATED ALWAYS AS ("Key" * 2) STORED)
            PARTITION BY RANGE ("Key");
        CREATE TABLE low PARTITION OF "Own"."Or""ders" FOR VALUES FROM (0) TO (10);
        CREATE TABLE "Own"."Hi'gh" PARTITION OF "Own"."Or""ders" FOR VALUES FROM (10) TO (20);
        INSERT INTO "Own"."Or""ders" VALUES (1, 'x'), (11, 'y');
        CREATE TABLE heir () INHERITS (t);
        INSERT INTO t VALUES (1, 1); INSERT INTO heir VALUES (2, 2);
    """)
    leaves = [Relation("public", "low"), Relation("Own", "Hi'gh")]
    async with export_snapshot(site.parameters, plugin="wal2json") as snapshot:
        assert [part.relation for part in await snapshot.parts(leaves)] == leaves
        found = [await rows_of(snapshot, leaf, "Key", "a b", "c%") for leaf in leaves]
        assert found == [[("1", "x", "2")], [("11", "y", "22")]]
        assert await rows_of(snapshot, T, "id") == [("1",)]
        with pytest.raises(TableUnreadable, match="no ordinary table"):
            await snapshot.parts([Relation("Own", 'Or"ders')])


@pytest.mark.parametrize(
    "meanwhile",
    [
        "TRUNCATE t",
        "ALTER TABLE t ALTER v TYPE bigint",
        "DROP TABLE t",
        "DROP TABLE t; CREATE TABLE t (id int, v int)",
        "ALTER TABLE t RENAME TO old; CREATE TABLE t (id int, v int)",
        "CREATE SCHEMA blue; CREATE TABLE blue.t (id int, v int);"
        " ALTER SCHEMA public RENAME TO green; ALTER SCHEMA blue RENAME TO public",
    ],
)
async def test_a_table_replaced_since_the_snapshot_is_never_read_as_empty(site: Site, meanwhile: str) -> None:
    site.psql("INSERT INTO t VALUES (1, 1)")
    async with export_snapshot(site.parameters, plugin="wal2json") as snapshot:
        site.psql(meanwhile)
        with pytest.raises(SnapshotStale, match=r"t.*Take a new snapshot"):
            await snapshot.parts([T])
        with pytest.raises(SnapshotStale, match=r"t.*Take a new snapshot"):
            copied(snapshot.name, SnapshotPart(T, 0, None), ["id", "v"])


async def test_a_column_dropped_since_the_snapshot_is_said(site: Site) -> None:
    async with export_snapshot(site.parameters, plugin="wal2json") as snapshot:
        site.psql("ALTER TABLE t DROP v")
        with pytest.raises(SnapshotStale, match='column "v" does not exist'):
            await rows_of(snapshot, T, "id", "v")


async def test_a_table_with_parts_can_not_be_truncated_until_the_snapshot_ends(site: Site) -> None:
    truncate = "SET lock_timeout = '50ms'; TRUNCATE t"
    async with export_snapshot(site.parameters, plugin="wal2json") as snapshot:
        await snapshot.parts([T])
        with pytest.raises(psycopg.errors.LockNotAvailable):
            site.psql(truncate)
    await nothing_is_left(site)
    site.psql(truncate)


async def test_a_copy_gives_way_to_a_truncate_that_waits_for_its_snapshot(site: Site) -> None:
    """The copy would wait for the TRUNCATE, which waits for the holder, which waits for the copy."""
    waits = "SELECT 1 FROM pg_locks WHERE relation = 't'::regclass AND NOT granted"
    site.psql("INSERT INTO t VALUES (1, 1)")
    async with export_snapshot(site.parameters, plugin="wal2json") as snapshot:
        (part,) = await snapshot.parts([T])
        truncate = asyncio.create_task(asyncio.to_thread(site.psql, "TRUNCATE t"))
        await until(lambda: site.psql(waits), "the TRUNCATE waits")
        with pytest.raises(SnapshotStale, match="t is locked"):
            await asyncio.to_thread(copied, snapshot.name, part, ["id"])
    await truncate
    assert site.psql("SELECT * FROM t") == []


async def test_a_locked_table_is_not_waited_for_and_is_named(site: Site) -> None:
    """A copy that waits holds slot and log, and takes the place of others'."""
    site.psql("CREATE TABLE another (id int)")
    async with export_snapshot(site.parameters, plugin="wal2json") as snapshot:
        with site.session() as altering:
            altering.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(SnapshotStale, match=r"^public\.t is locked"):
                await asyncio.wait_for(snapshot.parts([Relation("public", "another"), T]), DEADLINE_S)
            altering.rollback()
    async with export_snapshot(site.parameters, plugin="wal2json") as snapshot:
        assert [part.relation for part in await snapshot.parts([T])] == [T]


async def test_open_transactions_are_seen_with_whose_they_are(site: Site) -> None:
    """Those of all databases, by any role; one whose subtransactions have written too is one."""
    session = await connect(site.parameters)
    try:
        with site.session() as writer, psycopg.connect(site.postgres.conninfo()) as elsewhere:
            writer.execute("SET application_name = 'writes'")
            own = [writer.info.backend_pid, elsewhere.info.backend_pid]
            assert not [each for each in await open_transactions(session) if each.pid in own]
            with writer.transaction():
                writer.execute("INSERT INTO t VALUES (1, 1)")
            elsewhere.execute("CREATE TEMPORARY TABLE x (id int)")
            found = [each for each in await open_transactions(session) if each.pid in own]
            assert sorted(each.pid or 0 for each in found) == sorted(own)
            assert re.search(rf"pid {own[0]} \(writes, for \d s\)", waits_for(found))
    finally:
        session.pgconn.finish()


async def test_a_part_whose_snapshot_has_ended_is_an_error(site: Site) -> None:
    async with export_snapshot(site.parameters, plugin="wal2json") as snapshot:
        (part,) = await snapshot.parts([T])
    await nothing_is_left(site)
    with pytest.raises(SnapshotStale, match="the snapshot has ended"):
        copied(snapshot.name, part, ["id"])


@pytest.fixture
def reader(site: Site) -> Iterator[str]:
    """A role that may log in and replicate, with a password that the server asks for."""
    role = f"reader_{site.database}"
    site.psql(f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'the right one'")
    rules = site.postgres.directory / "data" / "pg_hba.conf"
    before = rules.read_text()
    rules.write_text(f"host all {role} 127.0.0.1/32 scram-sha-256\n{before}")
    site.psql("SELECT pg_reload_conf()")
    yield role
    rules.write_text(before)
    site.psql(f"SELECT pg_reload_conf(); DROP OWNED BY {role}; DROP ROLE {role}")


async def test_a_wrong_password_is_said_and_not_shown(site: Site, reader: str) -> None:
    given = site.parameters | {"user": reader, "password": "hunter2"}

    async def refused() -> ConnectionFailed | None:
        try:
            async with export_snapshot(given, plugin="wal2json"):
                return None
        except ConnectionFailed as error:
            return error

    # The server reads its rules again some moment after it was told to.
    deadline = time.monotonic() + DEADLINE_S
    while (error := await refused()) is None:
        assert time.monotonic() < deadline
    assert f'password authentication failed for user "{reader}"' in str(error)
    assert "hunter2" not in str(error)


async def test_a_role_that_can_not_see_all_rows_is_refused(
    site: Site, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.psql("INSERT INTO t VALUES (1, 1)")
    monkeypatch.setenv("PGUSER", reader)
    monkeypatch.setenv("PGPASSWORD", "the right one")
    async with export_snapshot(
        site.parameters | {"user": reader, "password": "the right one"}, plugin="wal2json"
    ) as snapshot:
        with pytest.raises(TableUnreadable, match="permission denied for table t"):
            await snapshot.parts([T])
    site.psql(f"GRANT SELECT ON t TO {reader}; ALTER TABLE t ENABLE ROW LEVEL SECURITY")
    async with export_snapshot(
        site.parameters | {"user": reader, "password": "the right one"}, plugin="wal2json"
    ) as snapshot:
        with pytest.raises(TableUnreadable, match="row-level security"):
            await rows_of(snapshot, T, "id")


async def test_a_role_without_replication_is_told_the_fix(site: Site, reader: str) -> None:
    site.psql(f"ALTER ROLE {reader} NOREPLICATION")
    with pytest.raises(RoleLacksReplication, match="Fix: ALTER ROLE"):
        async with export_snapshot(
            site.parameters | {"user": reader, "password": "the right one"}, plugin="wal2json"
        ):
            pass


async def test_no_spare_slot_is_said(site: Site) -> None:
    made = list(used_up(site))
    try:
        with pytest.raises(NoSpareSlot, match="Fix: raise max_replication_slots"):
            async with export_snapshot(site.parameters, plugin="wal2json"):
                pass
    finally:
        for slot in made:
            site.psql(f"SELECT pg_drop_replication_slot('{slot}')")


def used_up(site: Site) -> Iterator[str]:
    """Makes physical slots until there is room for none."""
    for number in range(100):
        slot = f"{site.slot}_{number}"
        try:
            site.psql(f"SELECT pg_create_physical_replication_slot('{slot}')")
        except psycopg.errors.ConfigurationLimitExceeded:
            return
        yield slot

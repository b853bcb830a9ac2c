"""The snapshot: all rows of some tables as of one exact place in the WAL, read by many sessions at once.

1. A temporary logical slot is made and its snapshot exported. Its consistent point is the cut: transactions
   whose commit LSN is below it are in the snapshot, those at or above it come from the stream. An ordinary
   snapshot has no such place: a commit that waits for a synchronous standby is streamed before it is seen.
2. One session, the holder, imports that snapshot and exports it again under its own name. The slot is needed
   no longer and ends there, so a copy of hours keeps neither a slot busy nor WAL from being removed.
3. Each part of a table is then copied by a session of its own, which imports the holder's snapshot.

Making the slot waits for every write transaction that is open, in any database of the server, and needs one
spare replication slot and walsender. While the holder lives, vacuum keeps the rows that it can see.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, LiteralString, NamedTuple

import psycopg
from psycopg import AsyncConnection, ClientCursor, Connection, errors, pq
from psycopg.pq.abc import PGconn, PGresult
from psycopg.sql import SQL, Composed, Identifier, Literal

from penstock.errors import LineLost, NeedsOperator, PostgresError
from penstock.model.lsn import parse_lsn
from penstock.model.relation import Relation
from penstock.postgres.connection import (
    PINNED_SESSION,
    QUALIFIED_NAMES,
    connect,
    connection_parameters,
    later_limits,
    one_line,
    refusal,
    with_options,
)
from penstock.postgres.slot.state import translate
from penstock.postgres.snapshot.content import Content
from penstock.postgres.snapshot.copying import mark

PART_BYTES: Final = 16 << 20
"""About the size of a part, its long values included: it takes a quarter of a second to copy, and a session
for it costs some 10 ms. No data file holds rows of two parts, so this bounds the files too."""
CHUNK_BYTES: Final = 2 << 20
"""The least size of a chunk. In chunks of 256 KiB, decoding took half as long again as from 1 MiB on."""

_CONNECT_TIMEOUT_S: Final = 10.0
_SILENCE_LIMIT_S: Final = 30.0
# Who waits for the table before a copying session waits for the holder, and the holder for the copy: without
# an end of patience all three, and everybody behind them, would wait for ever. And whoever has locked the
# table for an hour must not keep a snapshot waiting that others wait behind.
_PATIENCE: LiteralString = "SET lock_timeout = '3s'"

# Functions look into the catalog as it is now, while the query itself sees it as the snapshot does.
_LOOK: LiteralString = """
SELECT c.relkind = 'r',
       (c.oid = pg_catalog.to_regclass(pg_catalog.format('%%I.%%I', n.nspname, c.relname))
        AND c.relfilenode = pg_catalog.pg_relation_filenode(c.oid)) IS TRUE,
       pg_catalog.pg_relation_size(c.oid, 'main') / pg_catalog.current_setting('block_size')::int8,
       pg_catalog.pg_relation_size(c.oid, 'main')
           + coalesce(pg_catalog.pg_relation_size(nullif(c.reltoastrelid, 0), 'main'), 0)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s
"""

_COLUMNS: LiteralString = """
SELECT c.oid, c.relfilenode, ARRAY(
           SELECT a.attname::text FROM pg_catalog.pg_attribute a
           WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated <> 'v'
           ORDER BY a.attnum)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s
"""


class SnapshotStale(PostgresError):
    """The snapshot doesn't fit the tables as they are now, or has ended. A new one is needed."""


class TableUnreadable(NeedsOperator):
    """The role can't read all rows of a table."""


class SnapshotPart(NamedTuple):
    """Some blocks of a table."""

    relation: Relation
    first_block: int
    end_block: int | None
    """The first block that isn't part of it; None: there is no end."""


class ExportedSnapshot:
    """A snapshot that other sessions can import by its name, for as long as its context lasts."""

    def __init__(self, holder: AsyncConnection, *, name: str, cut_lsn: int) -> None:
        self._holder = holder
        self.name: Final = name
        self.cut_lsn: Final = cut_lsn
        """Transactions with a commit LSN below this one are in the snapshot, all others are not."""

    async def parts(
        self, relations: Sequence[Relation], *, part_bytes: int = PART_BYTES
    ) -> list[SnapshotPart]:
        """Cut tables into parts of about `part_bytes`, at least one a table; together they hold every row.

        The tables must have rows of their own: ordinary tables, or the leaves of a partitioned one. They are
        locked against being dropped, truncated or altered until the snapshot ends: such statements wait, and
        everything behind them waits too. SnapshotStale if it already happened since the snapshot was made,
        or if somebody has locked one of them for longer than a moment.
        """
        parts: list[SnapshotPart] = []
        for relation in relations:
            try:
                # One by one: the server doesn't say for which of several it has waited.
                await self._holder.execute(_lock(relation))
                row = await (await self._holder.execute(_LOOK, relation)).fetchone()
            except psycopg.Error as error:
                raise _meaning(error, str(relation)) from error
            blocks, size_bytes = _judged(relation, row)
            parts += _cut(relation, blocks, -(-size_bytes // part_bytes))
        return parts

    async def content(self, relation: Relation) -> Content:
        """Count and hash the rows of a table that has rows of its own. SnapshotStale as of `parts`."""
        try:
            # An error spoils this part of the transaction alone.
            # Rolled back, it keeps no lock: a look must not make anybody wait for the next table's.
            async with self._holder.transaction(force_rollback=True):
                await self._holder.execute("SET LOCAL row_security = off")
                await self._holder.execute(SQL("{} NOWAIT").format(_lock(relation)))
                _judged(relation, await (await self._holder.execute(_LOOK, relation)).fetchone())
                oid, filenode, columns = await self._row(_COLUMNS, relation)
                rows, total = await self._row(_digest(relation, columns))
        except psycopg.Error as error:
            raise _meaning(error, str(relation)) from error
        return Content(self.cut_lsn, oid, filenode, rows, int(total))

    async def _row(self, query: LiteralString | Composed, values: Sequence[str] = ()) -> tuple[Any, ...]:
        row = await (await self._holder.execute(query, values or None)).fetchone()
        assert row is not None, "the table is there and locked, and an aggregate has a row"
        return row


@asynccontextmanager
async def export_snapshot(parameters: dict[str, Any], *, plugin: str) -> AsyncIterator[ExportedSnapshot]:
    """A snapshot and its cut. Waits for all open write transactions; `parameters` are those of a connection.

    Raises what making a slot raises (NoSpareSlot, PluginForbidden, …), ConnectionFailed or LineLost.
    """
    holder = await connect(parameters)
    try:
        yield await _export(holder, parameters, plugin)
    finally:
        holder.pgconn.finish()


async def _export(holder: AsyncConnection, parameters: dict[str, Any], plugin: str) -> ExportedSnapshot:
    walsender = await connect({**parameters, "replication": "database"})
    try:
        cut_lsn, slot_snapshot = await _create_slot(walsender, plugin)
        await holder.execute(_PATIENCE)
        for statement in _importing(slot_snapshot):
            await holder.execute(statement)
        row = await (await holder.execute("SELECT pg_catalog.pg_export_snapshot()")).fetchone()
    except psycopg.Error as error:
        raise LineLost(f"the snapshot was not made: {one_line(error)}") from error
    finally:
        # Also if this is cancelled: psycopg has told the server to stop waiting by then.
        walsender.pgconn.finish()
    assert row is not None, "a SELECT without FROM has a row"
    return ExportedSnapshot(holder, name=row[0], cut_lsn=cut_lsn)


async def _create_slot(walsender: AsyncConnection, plugin: str) -> tuple[int, str]:
    """Make the temporary slot; its consistent point, and the name of its snapshot."""
    name = f"penstock_snapshot_{secrets.token_hex(8)}"
    export = SQL("(SNAPSHOT 'export')" if walsender.info.server_version >= 150000 else "EXPORT_SNAPSHOT")
    command = SQL("CREATE_REPLICATION_SLOT {} TEMPORARY LOGICAL {} {}").format(
        Identifier(name), Identifier(plugin), export
    )
    try:
        row = await (await walsender.execute(command)).fetchone()
    except psycopg.Error as error:
        raise translate(error, slot=name, plugin=plugin) from error
    assert row is not None, "the command answers with a row"
    return parse_lsn(row[1]), row[2]


def connect_for_copy() -> Connection:
    """A session for `copy_part`, by libpq's own variables alone: it runs where Spark's tasks do. Blocks."""
    parameters = connection_parameters(
        connect_timeout_s=_CONNECT_TIMEOUT_S,
        silence_limit_s=_SILENCE_LIMIT_S,
        role="snapshot",
        # Without the latter a policy would hide rows in silence; with it the copy fails.
        session=f"{QUALIFIED_NAMES} -c row_security=off",
    )
    try:
        return psycopg.connect(
            "",
            autocommit=True,
            cursor_factory=ClientCursor,
            prepare_threshold=None,
            client_encoding="utf8",
            **with_options(parameters, PINNED_SESSION),
        )
    except psycopg.Error as error:
        raise refusal(error) from None


def copy_part(
    connection: Connection, snapshot_name: str, columns: Sequence[str], part: SnapshotPart
) -> Iterator[bytes]:
    """The rows of a part in COPY's text format, in chunks of whole lines. Takes a fresh session. Blocks.

    It locks and checks the table as `parts` does, so what it yields is right even if the holder ends
    meanwhile. SnapshotStale also if somebody waits to truncate or alter it. Its errors show no values.
    """
    try:
        if limits := later_limits(connection.info.server_version):
            connection.execute(limits.encode())
        connection.execute(_PATIENCE)
        for statement in _importing(snapshot_name):
            connection.execute(statement)
        connection.execute(_lock(part.relation))
        _judged(part.relation, connection.execute(_LOOK, part.relation).fetchone())
        copy = mark(snapshot_name).encode() + _copy(columns, part).as_bytes(connection)
        yield from _chunks(connection.pgconn, copy)
        connection.execute("COMMIT")
    except psycopg.Error as error:
        raise _meaning(error, str(part.relation)) from None


def _chunks(pgconn: PGconn, copy: bytes) -> Iterator[bytes]:
    """By libpq itself, each row freed at once: psycopg's cursor, or a list of rows, took twice as long."""
    _expect(pq.ExecStatus.COPY_OUT, pgconn.exec_(copy))
    get_copy_data = pgconn.get_copy_data
    held = bytearray()
    while True:
        size, row = get_copy_data(0)
        if size < 0:
            break
        held += row
        if len(held) >= CHUNK_BYTES:
            yield bytes(held)
            held.clear()
    while (result := pgconn.get_result()) is not None:
        _expect(pq.ExecStatus.COMMAND_OK, result)
    if held:
        yield bytes(held)


def _expect(status: pq.ExecStatus, result: PGresult) -> None:
    if result.status != status:
        raise errors.error_from_result(result)


def _importing(snapshot_name: str) -> tuple[Composed | SQL, ...]:
    return (
        SQL("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"),
        SQL("SET TRANSACTION SNAPSHOT {}").format(Literal(snapshot_name)),
    )


def _lock(relation: Relation) -> Composed:
    return SQL("LOCK TABLE ONLY {} IN ACCESS SHARE MODE").format(Identifier(*relation))


def _copy(columns: Sequence[str], part: SnapshotPart) -> Composed:
    within = [SQL("ctid >= {}::tid").format(Literal(f"({part.first_block},0)"))]
    if part.end_block is not None:
        within.append(SQL("ctid < {}::tid").format(Literal(f"({part.end_block},0)")))
    return SQL("COPY (SELECT {} FROM ONLY {} WHERE {}) TO STDOUT").format(
        SQL(", ").join(map(Identifier, columns)), Identifier(*part.relation), SQL(" AND ").join(within)
    )


def _digest(relation: Relation, columns: Sequence[str]) -> Composed:
    """concat prints as COPY and wal2json do; a cast to text would not (char(n))."""
    cell = SQL(
        "CASE pg_catalog.num_nulls({0}) WHEN 1 THEN 'n' ELSE pg_catalog.concat("
        "pg_catalog.length(pg_catalog.concat({0})), ':', {0}) END"
    )
    text = SQL(" || ").join(cell.format(Identifier(name)) for name in columns) if columns else SQL("''")
    return SQL(
        "SELECT pg_catalog.count(*), coalesce(pg_catalog.sum(('x' || pg_catalog.left(pg_catalog.encode("
        "pg_catalog.sha256(pg_catalog.convert_to({}, 'UTF8')), 'hex'), 15))::bit(60)::int8), 0) FROM ONLY {}"
    ).format(text, Identifier(*relation))


def _judged(relation: Relation, row: tuple[Any, ...] | None) -> tuple[int, int]:
    """The table's blocks and its size, TOAST included, if the snapshot sees the table that is there now.

    TRUNCATE and a rewrite give a table new files, which are empty for an older snapshot.
    """
    if row is not None and not row[0]:
        raise TableUnreadable(f"{relation} is no ordinary table and has no rows of its own")
    if row is None or not row[1]:
        raise SnapshotStale(
            f"{relation} was made, truncated, rewritten or renamed after the snapshot. Take a new snapshot"
        )
    return row[2], row[3]


def _cut(relation: Relation, blocks: int, wanted: int) -> list[SnapshotPart]:
    count = max(1, min(blocks, wanted))
    starts = [blocks * place // count for place in range(count)]
    return [
        SnapshotPart(relation, first, end) for first, end in zip(starts, [*starts[1:], None], strict=True)
    ]


def _meaning(error: psycopg.Error, what: str) -> PostgresError:
    """What an error of a reading session means. Takes no more of the server's text than can't show a row."""
    sentence = error.diag.message_primary or one_line(error)
    if error.diag.message_hint:
        sentence = f"{sentence} ({error.diag.message_hint})"
    match error:
        case errors.UndefinedTable() | errors.InvalidSchemaName() | errors.UndefinedColumn():
            return SnapshotStale(f"{what}: {sentence}. It was altered or dropped. Take a new snapshot")
        case (
            errors.InvalidParameterValue() | errors.ObjectNotInPrerequisiteState() | errors.UndefinedObject()
        ):
            return SnapshotStale(f"{what}: the snapshot has ended: {sentence}. Take a new snapshot")
        case errors.LockNotAvailable():
            return SnapshotStale(
                f"{what} is locked: somebody truncates or alters it, or waits to (pg_locks says who)."
                " Take a new snapshot"
            )
        case errors.InsufficientPrivilege():
            return TableUnreadable(
                f"{what}: {sentence}. Fix: GRANT SELECT ON it, and USAGE ON its schema, to the role; with"
                " row-level security the role needs BYPASSRLS too"
            )
        case psycopg.OperationalError():
            return LineLost(f"{what}: {sentence}")
        case _:
            return TableUnreadable(f"{what}: {sentence}")

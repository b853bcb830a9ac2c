from __future__ import annotations

import asyncio

from psycopg import AsyncConnection

from penstock.decoding.plugins import decoder_for
from penstock.model.relation import Relation
from penstock.postgres.catalog.table_catalog import ShapeCatalog
from penstock.postgres.catalog.table_tree import Found
from tests.fake_session import FakeSession


async def test_the_reader_does_not_wait_behind_a_look() -> None:
    """A catalog that takes long to answer for all tables holds nobody who asks for one."""
    asked, go_on = asyncio.Event(), asyncio.Event()

    class Slow(FakeSession):
        async def execute(self, query: str, parameters: object = None) -> _Rows:  # type: ignore[override]
            if "pg_current_wal_flush_lsn" in query:
                asked.set()
                await go_on.wait()
            return _Rows()

    async def connect() -> AsyncConnection:
        return Slow({}, pause=lambda _: None).as_connection()

    catalog = ShapeCatalog(connect, decoder_for("wal2json"))
    look = asyncio.create_task(catalog.look([Relation("public", "t")]))
    await asyncio.wait_for(asked.wait(), 5)
    found = await asyncio.wait_for(catalog.found(Relation("public", "u")), 5)

    assert found == Found()
    assert not look.done()
    look.cancel()


class _Rows:
    async def fetchall(self) -> list[tuple[object, ...]]:
        return [(None, None, None)]

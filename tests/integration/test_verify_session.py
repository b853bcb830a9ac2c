"""The sessions of `penstock verify` print values as those of the service do."""

from __future__ import annotations

import pytest

from penstock.local.postgres import PrivatePostgres
from penstock.model.relation import Relation
from penstock.postgres.snapshot.change_watch import watch_changes
from penstock.settings.loading import load_shapes_settings
from penstock.shapes.verify.command import line_of


async def test_names_have_their_schema(
    postgres: PrivatePostgres, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that moves is judged by its change, and the service wrote `public.t` into the lake."""
    for name, value in postgres.env(database).items():
        monkeypatch.setenv(name, value)
    postgres.psql("CREATE TABLE t (id int PRIMARY KEY, k regclass)", database)
    line = line_of(load_shapes_settings(dotenv=None))
    async with line.open(), watch_changes(line.parameters, plugin="wal2json") as watch:
        postgres.psql("INSERT INTO t VALUES (1, 't')", database)
        frames = await watch.frames([Relation("public", "t")], 2**60)
    assert frames is not None
    assert [b'"public.t"' in frame for frame in frames] == [True]

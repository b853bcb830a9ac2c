"""The statements of docs/postgres.md, run on a real server: they work, and they are enough."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from penstock.check import find
from penstock.finding import Level
from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from penstock.settings.loading import load_capture_settings
from tests.markdown_pages import DOCS, fences
from tests.servers.capture_site import CaptureSite

DATABASE = "shop"
TABLES = """
    CREATE TABLE orders (id bigint PRIMARY KEY, note text);
    CREATE TABLE customers (id bigint PRIMARY KEY);
    SELECT pg_create_logical_replication_slot('etl_slot_wal2json', 'wal2json')
"""


@pytest.fixture
def shop(postgres: PrivatePostgres, kinesis: LocalKinesis, stream: str) -> Iterator[CaptureSite]:
    """The database and the tables that the page speaks of."""
    postgres.create_database(DATABASE)
    site = CaptureSite(postgres, DATABASE, kinesis, stream)
    for statement in TABLES.split(";"):
        site.psql(statement)
    yield site
    site.psql("DROP OWNED BY penstock")
    postgres.psql(f"DROP DATABASE {DATABASE} WITH (FORCE)")
    postgres.psql("DROP ROLE penstock")
    postgres.psql("ALTER SYSTEM RESET wal_level")


def statements(postgres: PrivatePostgres) -> list[str]:
    """Those that this server can know, in the page's order."""
    blocks = [fence.text for fence in fences((DOCS / "postgres.md").read_text(), "sql")]
    text = re.sub(r"--.*", "", "\n".join(blocks))
    found = [each.strip() for each in text.split(";") if each.strip()]
    return [each for each in found if "output_plugin_libraries" not in each or postgres.knows_plugin_setting]


async def test_the_statements_work_and_are_enough(
    shop: CaptureSite, postgres: PrivatePostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    for statement in statements(postgres):
        shop.psql(statement)
    assert shop.psql("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()") == []

    for name, value in shop.env(PGUSER="penstock").items():
        monkeypatch.setenv(name, value)
    findings = await find(load_capture_settings(dotenv=None))
    assert [each for each in findings if each.level is not Level.OK] == []
    rights = "SELECT rolsuper, rolreplication, rolcreatedb FROM pg_roles WHERE rolname = 'penstock'"
    assert shop.psql(rights) == [(False, True, False)]
    readable = "SELECT has_table_privilege('penstock', 'orders', {})"
    assert shop.psql(readable.format("'SELECT'")) == [(True,)]
    assert shop.psql(readable.format("'INSERT, UPDATE, DELETE, TRUNCATE'")) == [(False,)]

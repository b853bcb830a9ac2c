"""What `penstock check` says of tables, held against what wal2json really does with them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from psycopg.conninfo import conninfo_to_dict
from psycopg.sql import Literal

from penstock.decoding.table_patterns import parse_patterns
from penstock.finding import Finding, Level
from penstock.local.postgres import PrivatePostgres
from penstock.postgres.connection import connect
from penstock.postgres.preflight.queries import read_tables
from penstock.postgres.preflight.tables import CheckedTable, TableRules, judge_tables
from tests.servers.slots import SlotWatch

SLOT = "check_tables"
TABLES = """
    CREATE TABLE keyed (id int PRIMARY KEY, amount numeric);
    CREATE TABLE keyless (id int);
    CREATE TABLE full_keyless (id int);
    ALTER TABLE full_keyless REPLICA IDENTITY FULL;
    CREATE TABLE identity_nothing (id int PRIMARY KEY);
    ALTER TABLE identity_nothing REPLICA IDENTITY NOTHING;
    CREATE TABLE by_index (id int NOT NULL UNIQUE);
    ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_id_key;
    CREATE TABLE by_dropped_index (id int NOT NULL UNIQUE);
    ALTER TABLE by_dropped_index REPLICA IDENTITY USING INDEX by_dropped_index_id_key;
    ALTER TABLE by_dropped_index DROP CONSTRAINT by_dropped_index_id_key;
    CREATE TABLE only_unique (id int NOT NULL UNIQUE);
    CREATE TABLE deferred (id int PRIMARY KEY DEFERRABLE);
    CREATE UNLOGGED TABLE unlogged (id int);
    CREATE TABLE parent (id int PRIMARY KEY) PARTITION BY RANGE (id);
    CREATE TABLE leaf PARTITION OF parent FOR VALUES FROM (0) TO (100);
    CREATE SCHEMA "Other one";
    CREATE TABLE "Other one".keyed (id int PRIMARY KEY);
    CREATE TABLE "Other one"."a,b.c" (id int PRIMARY KEY);
    CREATE TABLE "Other one"."*" (id int PRIMARY KEY)
"""
DROPPED = {"by_dropped_index", "deferred", "identity_nothing", "keyless", "only_unique"}
UNKEYED = {"by_dropped_index", "full_keyless", "keyless", "only_unique"}
ALL = TableRules(
    add_tables=None, filter_tables=None, by_primary_key=True, fallback="lsn", numeric_as_string=False
)
PATTERNS = [
    "public.keyed",
    "*.keyed",
    " public.keyed , public.leaf",
    "public.*",
    "*.*",
    "PUBLIC.keyed",
    "public.key*",
    r"Other\ one.a\,b\.c",
    r"Other\ one.a\,b.c",
    r"Other\ one.\*",
    r"Other\ one.*",
    r"*.\k\e\y\e\d",
    "public.parent",
]


@pytest.fixture(scope="module")
def tables_database(postgres: PrivatePostgres, slot_watch: SlotWatch) -> Iterator[str]:
    """A database with all kinds of tables, and one update of each waiting in a slot."""
    name = postgres.create_database()
    postgres.psql(TABLES, name)
    postgres.psql(f"SELECT pg_create_logical_replication_slot('{SLOT}', 'wal2json')", name)
    relations = postgres.psql(
        "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r' AND oid >= 16384 ORDER BY 1", name
    )
    for (relation,) in relations:
        postgres.psql(f"INSERT INTO {relation} (id) VALUES (1); UPDATE {relation} SET id = 2", name)
    yield name
    slot_watch.drop_all_of(name)
    postgres.psql(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture
async def tables(postgres: PrivatePostgres, tables_database: str) -> list[CheckedTable]:
    async with await connect(conninfo_to_dict(postgres.conninfo(tables_database))) as session:
        return await read_tables(session)


def sent(server: PrivatePostgres, database: str, **options: str) -> list[dict[str, str]]:
    """What wal2json sends of the slot, with these options."""
    given = {"format-version": "2", "include-transaction": "false", **options}
    listed = ", ".join(Literal(part).as_string() for pair in given.items() for part in pair)
    rows = server.psql(
        f"SELECT data FROM pg_logical_slot_peek_changes('{SLOT}', NULL, NULL, {listed})", database
    )
    return [json.loads(data) for (data,) in rows]


def of(findings: list[Finding], subject: str) -> list[Finding]:
    return [finding for finding in findings if finding.subject == subject]


def test_dropped_updates_are_foretold(
    postgres: PrivatePostgres, tables_database: str, tables: list[CheckedTable]
) -> None:
    changes = sent(postgres, tables_database)
    inserted, updated = ({c["table"] for c in changes if c["action"] == action} for action in "IU")
    assert inserted - updated == DROPPED

    (finding,) = of(judge_tables(tables, ALL, upgrade_to="wal2json 2.6"), "replica identity")

    named = ", ".join(f"public.{name}" for name in sorted(DROPPED))
    assert (finding.level, finding.found.endswith(f"for {named}")) == (Level.FAIL, True)
    assert "REPLICA IDENTITY FULL" in finding.fix


@pytest.mark.parametrize(("fallback", "level"), [("lsn", Level.WARN), ("table", Level.OK)])
def test_tables_without_a_key(tables: list[CheckedTable], fallback: str, level: Level) -> None:
    rules = ALL._replace(fallback=fallback)

    (finding,) = of(judge_tables(tables, rules, upgrade_to="wal2json 2.6"), "keys")

    assert finding.level is level
    assert {name for name in UNKEYED if f"public.{name}" in finding.found} == UNKEYED
    assert "public.keyed" not in finding.found
    assert of(judge_tables(tables, ALL._replace(by_primary_key=False), upgrade_to=None), "keys") == []


def test_numbers_that_may_be_lost_are_said_once_and_only_where_there_are_any(
    tables: list[CheckedTable],
) -> None:
    (old,) = of(judge_tables(tables, ALL, upgrade_to="wal2json 2.6"), "numbers")
    (new,) = of(judge_tables(tables, ALL, upgrade_to=None), "numbers")

    assert (old.level, old.found[-3:]) == (Level.WARN, ": 1")
    assert ("2.6" in old.fix, "2.6" in new.fix) == (True, False)
    for harmless in (ALL._replace(numeric_as_string=True), ALL._replace(filter_tables="public.keyed")):
        assert of(judge_tables(tables, harmless, upgrade_to=None), "numbers") == []


def test_partitions_are_named_as_leaves(tables: list[CheckedTable]) -> None:
    findings = judge_tables(tables, ALL._replace(add_tables="public.parent"), upgrade_to="wal2json 2.6")
    (misled,) = of(findings, "tables")
    (note,) = of(judge_tables(tables, ALL, upgrade_to="wal2json 2.6"), "partitions")

    assert (misled.level, note.level) == (Level.WARN, Level.OK)
    assert "'public.parent' is a partitioned table" in misled.found
    assert "the leaf's name" in note.found


def test_a_pattern_without_a_table(tables: list[CheckedTable]) -> None:
    rules = ALL._replace(filter_tables="public.keyed,public.typo")

    (finding,) = of(judge_tables(tables, rules, upgrade_to="wal2json 2.6"), "tables")

    assert finding.found == "WAL2JSON_FILTER_TABLES: 'public.typo' matches no table"


def test_only_followed_tables_count(tables: list[CheckedTable]) -> None:
    for rules in (
        ALL._replace(add_tables="public.keyed"),
        ALL._replace(filter_tables=",".join(f"public.{name}" for name in DROPPED)),
    ):
        (finding,) = of(judge_tables(tables, rules, upgrade_to="wal2json 2.6"), "replica identity")
        assert finding.level is Level.OK


@pytest.mark.parametrize("setting", PATTERNS)
def test_patterns_mean_what_wal2json_takes_them_for(
    postgres: PrivatePostgres, tables_database: str, setting: str
) -> None:
    everything = {(change["schema"], change["table"]) for change in sent(postgres, tables_database)}
    followed = sent(postgres, tables_database, **{"add-tables": setting})

    meant = {name for name in everything if any(each.matches(*name) for each in parse_patterns(setting))}

    assert meant == {(change["schema"], change["table"]) for change in followed}

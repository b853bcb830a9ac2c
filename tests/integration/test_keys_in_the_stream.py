"""Partition keys as they arrive: one row, one key, whatever happens to it."""

from __future__ import annotations

import hashlib
import re

import pytest

from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from tests.faults.stream_checks import read_changes
from tests.servers.capture_site import CaptureSite

LSN = re.compile(r"[0-9A-F]+/[0-9A-F]+")
LONG = "k" * 1000


@pytest.fixture
def site(postgres: PrivatePostgres, database: str, kinesis: LocalKinesis, stream: str) -> CaptureSite:
    return CaptureSite(postgres, database, kinesis, stream, LEADER_TIMEOUT_S=10)


def keys(site: CaptureSite) -> dict[str, list[tuple[str, str]]]:
    """Of each table: action and key of its changes, in the order of their LSNs."""
    site.wait_until_confirmed()
    changes = {change.data: change for change in read_changes(site.kinesis, site.stream)}
    found: dict[str, list[tuple[str, str]]] = {}
    for change in sorted(changes.values(), key=lambda change: change.lsn):
        found.setdefault(str(change.table), []).append((str(change.action), change.key))
    return found


def test_every_kind_of_key(site: CaptureSite) -> None:
    site.psql(
        """
        CREATE TABLE reversed (a int, b text, c int, PRIMARY KEY (b, a) INCLUDE (c));
        CREATE TABLE by_index (id int PRIMARY KEY, code text NOT NULL UNIQUE, v int);
        ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_code_key;
        CREATE TABLE moves (id int PRIMARY KEY, v int);
        CREATE TABLE long (id text PRIMARY KEY, v int);
        CREATE TABLE full_keyed (v int, id int PRIMARY KEY);
        ALTER TABLE full_keyed REPLICA IDENTITY FULL;
        CREATE TABLE full_keyless (id int, v int);
        ALTER TABLE full_keyless REPLICA IDENTITY FULL;
        CREATE TABLE "Odd/näme" (id text PRIMARY KEY, v int)
        """
    )
    with site.capture() as capture:
        capture.wait_for_log("streaming")
        site.psql(
            f"""
            INSERT INTO reversed VALUES (1, 'x,y', 2);
            UPDATE reversed SET c = 3;
            DELETE FROM reversed;
            INSERT INTO by_index VALUES (1, 'one', 1);
            UPDATE by_index SET v = 2;
            UPDATE by_index SET id = 3;
            DELETE FROM by_index;
            INSERT INTO moves VALUES (1, 1);
            UPDATE moves SET id = 2;
            DELETE FROM moves;
            INSERT INTO long VALUES ('{LONG}', 1);
            UPDATE long SET v = 2;
            DELETE FROM long;
            INSERT INTO full_keyed VALUES (1, 7);
            UPDATE full_keyed SET v = 2;
            DELETE FROM full_keyed;
            INSERT INTO full_keyless VALUES (1, 1);
            UPDATE full_keyless SET v = 2;
            DELETE FROM full_keyless;
            INSERT INTO "Odd/näme" VALUES ('50% of 日', 1);
            TRUNCATE moves
            """
        )
        found = keys(site)

    hashed = hashlib.sha256(f"public.long/{LONG}".encode()).hexdigest()
    assert [key for _, key in found["reversed"]] == ["public.reversed/x%2Cy,1"] * 3
    assert [key for _, key in found["by_index"]] == ["public.by_index/one"] * 4
    assert found["moves"][:3] == [("I", "public.moves/1"), ("U", "public.moves/2"), ("D", "public.moves/2")]
    assert [key for _, key in found["long"]] == [hashed] * 3
    assert [key for _, key in found["full_keyed"]] == ["public.full_keyed/7"] * 3
    assert all(LSN.fullmatch(key) for _, key in [*found["full_keyless"], found["moves"][3]])
    assert [action for action, _ in found["full_keyless"]] == ["I", "U", "D"]
    assert found["moves"][3][0] == "T"
    assert found["Odd/näme"] == [("I", "public.Odd%2Fn%C3%A4me/50%25%20of%20%E6%97%A5")]


def test_a_table_whose_key_changes(site: CaptureSite) -> None:
    """Updates and deletes show a new identity; an insert before them still goes under the old key."""
    site.psql(
        """
        CREATE TABLE t (id int PRIMARY KEY, code text NOT NULL UNIQUE);
        CREATE TABLE u (id int NOT NULL UNIQUE, v int);
        ALTER TABLE u REPLICA IDENTITY FULL
        """
    )
    with site.capture() as capture:
        capture.wait_for_log("streaming")
        site.psql("INSERT INTO t VALUES (1, 'one'); INSERT INTO u VALUES (1); UPDATE u SET id = 2")
        site.wait_until_confirmed()
        site.psql("ALTER TABLE t REPLICA IDENTITY USING INDEX t_code_key")
        site.psql("ALTER TABLE u REPLICA IDENTITY USING INDEX u_id_key")
        site.psql("UPDATE t SET id = id; DELETE FROM t; INSERT INTO t VALUES (2, 'two')")
        site.psql("UPDATE u SET id = 3; DELETE FROM u; INSERT INTO u VALUES (4)")
        site.wait_until_confirmed()
        site.psql(
            "ALTER TABLE t REPLICA IDENTITY DEFAULT, DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (code, id)"
        )
        site.psql("INSERT INTO t VALUES (3, 'three')")
        found = keys(site)

    assert [key for _, key in found["t"]] == [
        "public.t/1",
        "public.t/one",
        "public.t/one",
        "public.t/two",
        "public.t/three,3",
    ]
    assert [key for _, key in found["u"] if not LSN.fullmatch(key)] == [
        "public.u/3",
        "public.u/3",
        "public.u/4",
    ]


def test_a_backlog_keeps_the_keys_of_its_time(site: CaptureSite) -> None:
    """Issue 8, point 4: capture is down while tables change their keys. A row's life of before stays under
    one key.
    """
    site.psql(
        """
        CREATE TABLE migrated (id int PRIMARY KEY, uuid text NOT NULL UNIQUE, v int);
        CREATE TABLE swapped (a int, b int, v int, PRIMARY KEY (a, b));
        CREATE TABLE keyless (id int PRIMARY KEY, v int);
        CREATE TABLE orders (id int PRIMARY KEY, v int);
        CREATE TABLE orders_new (v int, id int, tenant int, PRIMARY KEY (tenant, id));
        CREATE TABLE indexed (id int PRIMARY KEY, code text NOT NULL UNIQUE, v int);
        ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_code_key
        """
    )
    site.psql(f"SELECT pg_create_logical_replication_slot('{site.slot}', 'wal2json')")
    for table, values in (
        ("migrated", "1, 'u', 0"),
        ("swapped", "1, 2, 0"),
        ("keyless", "1, 0"),
        ("orders", "1, 0"),
        ("orders_new", "0, 1, 9"),
        ("indexed", "1, 'one', 0"),
    ):
        site.psql(_life(table, values))
    site.psql(
        """
        ALTER TABLE migrated DROP CONSTRAINT migrated_pkey, ADD PRIMARY KEY (uuid);
        ALTER TABLE swapped DROP CONSTRAINT swapped_pkey, ADD PRIMARY KEY (b, a);
        ALTER TABLE keyless DROP CONSTRAINT keyless_pkey;
        ALTER TABLE orders RENAME TO orders_old;
        ALTER TABLE orders_new RENAME TO orders
        """
    )
    site.psql(_life("migrated", "1, 'u', 0"))
    site.psql(_life("orders", "0, 1, 9"))
    with site.capture() as capture:
        capture.wait_for_log("streaming")
        found = keys(site)

    assert found["migrated"] == _under("public.migrated/1") + _under("public.migrated/u")
    assert found["swapped"] == _under("public.swapped/2,1")
    assert found["keyless"] == _under("public.keyless/1")
    assert found["orders"] == _under("public.orders/1") + _under("public.orders/9,1")
    assert found["orders_new"] == _under("public.orders_new/1,9")
    assert found["indexed"] == _under("public.indexed/one")


def _life(table: str, values: str) -> str:
    return (
        f"INSERT INTO {table} VALUES ({values}); UPDATE {table} SET v = 1; UPDATE {table} SET v = 2;"
        f" DELETE FROM {table}"
    )


def _under(key: str) -> list[tuple[str, str]]:
    return [(action, key) for action in "IUUD"]


@pytest.mark.parametrize(
    ("variables", "keyed", "keyless"),
    [
        ({"PARTITION_KEY_FALLBACK": "table"}, "public.keyed/1", "public.keyless"),
        (
            {"PARTITION_KEY_MODE": "fallback", "PARTITION_KEY_FALLBACK": "table"},
            "public.keyed",
            "public.keyless",
        ),
        (
            {
                "PARTITION_KEY_MODE": "fallback",
                "PARTITION_KEY_FALLBACK": "static",
                "PARTITION_KEY_STATIC_VALUE": "all",
            },
            "all",
            "all",
        ),
    ],
)
def test_fallbacks(site: CaptureSite, variables: dict[str, str], keyed: str, keyless: str) -> None:
    site.psql("CREATE TABLE keyed (id int PRIMARY KEY); CREATE TABLE keyless (id int)")
    with site.capture(**variables) as capture:
        capture.wait_for_log("streaming")
        site.psql("INSERT INTO keyed VALUES (1); INSERT INTO keyless VALUES (1)")
        found = keys(site)

    assert found == {"keyed": [("I", keyed)], "keyless": [("I", keyless)]}

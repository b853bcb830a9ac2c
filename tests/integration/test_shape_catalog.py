"""What the catalog says of tables, held against a real Postgres and against what wal2json writes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import msgspec
import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict

from penstock.decoding.plugins import decoder_for
from penstock.decoding.rows import Column
from penstock.errors import ConnectionFailed
from penstock.local.postgres import PrivatePostgres
from penstock.model.relation import Relation
from penstock.postgres.catalog.partition_bounds import DEFAULT, End, RangeBound, bounds_of
from penstock.postgres.catalog.table_catalog import ShapeCatalog
from penstock.postgres.catalog.table_facts import IndexFacts, LeafFacts, TableFacts, to_columns
from penstock.postgres.catalog.table_sizes import total_bytes
from penstock.postgres.catalog.table_tree import Found, Member, Tree
from penstock.postgres.connection import PINNED_SESSION, connect
from penstock.shapes.following.rewrites import judge

Sql = Callable[..., None]
EVENTS = Relation("public", "events")
T = Relation("public", "t")
PARTITIONS = """
    CREATE TABLE events (id int, day int, note text, PRIMARY KEY (day, id)) PARTITION BY RANGE (day);
    CREATE TABLE may PARTITION OF events FOR VALUES FROM (0) TO (10);
    CREATE TABLE june PARTITION OF events FOR VALUES FROM (10) TO (20) PARTITION BY HASH (id);
    CREATE TABLE june_0 PARTITION OF june FOR VALUES WITH (MODULUS 2, REMAINDER 0);
    CREATE TABLE june_1 PARTITION OF june FOR VALUES WITH (MODULUS 2, REMAINDER 1)
"""


def public(*names: str) -> list[Relation]:
    return [Relation("public", name) for name in names]


@pytest.fixture
def sql(postgres: PrivatePostgres, database: str) -> Sql:
    """Runs each text in a transaction of its own."""

    def run(*statements: str) -> None:
        for statement in statements:
            postgres.psql(statement, database)

    return run


@pytest.fixture
async def catalog(postgres: PrivatePostgres, database: str) -> AsyncIterator[ShapeCatalog]:
    async def opened() -> AsyncConnection:
        return await connect(conninfo_to_dict(postgres.conninfo(database)))

    catalog = ShapeCatalog(opened, decoder_for("wal2json"))
    yield catalog
    await catalog.close()


async def tree_of(catalog: ShapeCatalog, table: Relation) -> Tree:
    (tree,) = await catalog.trees([table])
    return tree


async def facts_of(catalog: ShapeCatalog, table: Relation = T) -> TableFacts:
    return (await catalog.facts([table]))[table]


def member(tree: Tree, name: str) -> Member:
    (found,) = (each for each in (tree.table, *tree.partitions) if each.relation.table == name)
    return found


async def place_of(catalog: ShapeCatalog, relation: Relation) -> Found | None:
    return await catalog.found(relation)


class TestTrees:
    async def test_partitions_of_every_level(self, sql: Sql, catalog: ShapeCatalog) -> None:
        sql(PARTITIONS, "CREATE TABLE t (id int PRIMARY KEY)", 'CREATE TABLE "Odd, {t}" (id int)')
        odd = Relation("public", "Odd, {t}")

        trees = {tree.table.relation: tree for tree in await catalog.trees([T, EVENTS, odd, *public("no")])}

        assert trees.keys() == {T, EVENTS, odd}
        assert (trees[T].is_partitioned, trees[T].partitions) == (False, ())
        assert trees[EVENTS].is_partitioned
        names = [each.relation for each in trees[EVENTS].partitions]
        assert sorted(names) == public("june", "june_0", "june_1", "may")
        assert not any(each.attached for each in (trees[EVENTS].table, *trees[EVENTS].partitions))
        assert await catalog.trees([]) == []

    async def test_how_it_is_split_and_the_bounds(self, sql: Sql, catalog: ShapeCatalog) -> None:
        sql(PARTITIONS, "CREATE TABLE rest PARTITION OF events DEFAULT")
        tree = await tree_of(catalog, EVENTS)
        assert (tree.table.split, tree.table.parent, tree.table.bound) == (("r", "day"), 0, "")
        may, june, deep = (member(tree, name) for name in ("may", "june", "june_0"))
        assert (may.parent, may.bound, may.split) == (
            tree.table.oid,
            "FOR VALUES FROM (0) TO (10)",
            (),
        )
        assert (june.parent, june.split, deep.parent) == (tree.table.oid, ("h", "id"), june.oid)
        assert deep.bound == "FOR VALUES WITH (modulus 2, remainder 0)"
        assert member(tree, "rest").bound == DEFAULT
        assert bounds_of(tree, may) == (RangeBound(("day",), (End(0, "0"),), (End(0, "10"),), ("integer",)),)
        (below,) = await catalog.trees(public("june"))
        assert (below.table.parent, below.table.bound) == (0, ""), "what is above it doesn't bound it"

    @pytest.mark.parametrize(
        ("by", "bound", "printed"),
        [
            ("LIST (t)", "IN ('it''s', NULL, 'a\nb')", "('it''s', NULL, 'a\nb')"),
            ("RANGE (n, d)", "FROM (-1.5, MINVALUE) TO (2, '2026-01-01')", "('-1.50', MINVALUE) TO (2.00"),
            ("RANGE (z)", "FROM ('2026-01-01 02:00+02') TO (MAXVALUE)", "('2026-01-01 00:00:00+00')"),
            ("LIST (u)", "IN ('0B5F8C1E-0000-4000-8000-000000000000')", "('0b5f8c1e-0000-4000-8000-0"),
        ],
    )
    async def test_bounds_are_read_as_they_are_printed(
        self, sql: Sql, catalog: ShapeCatalog, by: str, bound: str, printed: str
    ) -> None:
        columns = "t text, n numeric(12,2), d date, z timestamptz, u uuid"
        sql(
            f"CREATE TABLE t ({columns}) PARTITION BY {by}",
            f"CREATE TABLE t_1 PARTITION OF t FOR VALUES {bound}",
        )
        tree = await tree_of(catalog, T)
        assert printed in tree.partitions[0].bound
        assert bounds_of(tree, tree.partitions[0]) is not None

    @pytest.mark.parametrize(
        ("by", "bound"),
        [
            ("RANGE ((n + 1))", "FROM (0) TO (10)"),
            ("RANGE (n, (n + 1))", "FROM (0, 0) TO (10, 0)"),
            ("LIST (t text_pattern_ops)", "IN ('a')"),
            ("LIST (t COLLATE loose)", "IN ('a')"),
            ("RANGE (t)", "FROM ('a') TO ('b')"),
        ],
    )
    async def test_what_others_can_not_compare(
        self, sql: Sql, catalog: ShapeCatalog, by: str, bound: str
    ) -> None:
        sql(
            "CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
            f"CREATE TABLE t (n int, t text) PARTITION BY {by}",
            f"CREATE TABLE t_1 PARTITION OF t FOR VALUES {bound}",
        )
        tree = await tree_of(catalog, T)
        assert bounds_of(tree, tree.partitions[0]) is None

    async def test_a_sub_partition_is_a_tree_of_its_own(self, sql: Sql, catalog: ShapeCatalog) -> None:
        sql(PARTITIONS)

        trees = await catalog.trees(public("june", "may"))

        assert sorted((tree.table.relation.table, len(tree.partitions)) for tree in trees) == [
            ("june", 2),
            ("may", 0),
        ]

    async def test_tables_that_inherit_are_no_partitions(self, sql: Sql, catalog: ShapeCatalog) -> None:
        sql("CREATE TABLE t (id int PRIMARY KEY)")
        assert not (await tree_of(catalog, T)).has_children
        sql("CREATE TABLE child () INHERITS (t)")

        assert (await tree_of(catalog, T)).has_children, "a table that is made while the service runs"
        assert (await tree_of(catalog, T)).partitions == ()
        assert (await facts_of(catalog)).has_children
        assert await place_of(catalog, Relation("public", "child")) == Found()

    @pytest.mark.parametrize(
        "join",
        [
            "ALTER TABLE events ATTACH PARTITION july FOR VALUES FROM (20) TO (30)",
            "ALTER TABLE july RENAME TO other; ALTER TABLE other RENAME TO july;"
            " ALTER TABLE july ALTER note SET STATISTICS 5; ALTER TABLE july OWNER TO CURRENT_USER;"
            " ALTER TABLE events ATTACH PARTITION july FOR VALUES FROM (20) TO (30); ANALYZE july",
            "BEGIN; SAVEPOINT a; ALTER TABLE july RENAME TO j; SAVEPOINT b; ALTER TABLE j RENAME TO july;"
            " ALTER TABLE events ATTACH PARTITION july FOR VALUES FROM (20) TO (30); COMMIT",
        ],
    )
    async def test_attached(self, sql: Sql, catalog: ShapeCatalog, join: str) -> None:
        sql(PARTITIONS, "CREATE TABLE july (LIKE events INCLUDING ALL)", join)
        sql("VACUUM FULL pg_attribute", "VACUUM FULL pg_inherits", "VACUUM FREEZE pg_inherits", "ANALYZE")

        tree = await tree_of(catalog, EVENTS)

        assert [each.relation.table for each in tree.partitions if each.attached] == ["july"]
        assert await place_of(catalog, Relation("public", "july")) == Found((EVENTS,), attached=True)

    @pytest.mark.parametrize(
        "make",
        [
            "CREATE TABLE july PARTITION OF events FOR VALUES FROM (20) TO (30)",
            "BEGIN; SAVEPOINT a; CREATE TABLE july PARTITION OF events FOR VALUES FROM (20) TO (30);"
            " RELEASE a; INSERT INTO july VALUES (1, 21); COMMIT",
            "CREATE TABLE july (LIKE events INCLUDING ALL); INSERT INTO july VALUES (1, 21);"
            " ALTER TABLE events ATTACH PARTITION july FOR VALUES FROM (20) TO (30)",
        ],
    )
    async def test_made_as_a_partition(self, sql: Sql, catalog: ShapeCatalog, make: str) -> None:
        sql(PARTITIONS, make)
        sql(
            "ANALYZE july",
            "ALTER TABLE july RENAME TO j",
            "ALTER TABLE j RENAME TO july",
            "ALTER TABLE events ADD x int DEFAULT 1",
            "ALTER TABLE july ALTER x SET DEFAULT 2",
            "VACUUM FULL july",
        )

        assert not member(await tree_of(catalog, EVENTS), "july").attached
        assert await place_of(catalog, Relation("public", "july")) == Found((EVENTS,))

    async def test_attached_with_all_that_was_below_it(self, sql: Sql, catalog: ShapeCatalog) -> None:
        sql(
            PARTITIONS,
            "CREATE TABLE q3 (LIKE events INCLUDING ALL) PARTITION BY RANGE (day)",
            "CREATE TABLE july PARTITION OF q3 FOR VALUES FROM (20) TO (30)",
            "ALTER TABLE events ATTACH PARTITION q3 FOR VALUES FROM (20) TO (50)",
            "CREATE TABLE august PARTITION OF q3 FOR VALUES FROM (30) TO (40)",
        )

        tree = await tree_of(catalog, EVENTS)

        assert {each.relation.table for each in tree.partitions if each.attached} == {"q3", "july"}
        q3 = Relation("public", "q3")
        assert await place_of(catalog, Relation("public", "july")) == Found((q3, EVENTS), attached=True)
        assert await place_of(catalog, Relation("public", "august")) == Found((q3, EVENTS))
        assert not any(each.attached for each in (await tree_of(catalog, q3)).partitions)

    async def test_detached_and_attached_again(self, sql: Sql, catalog: ShapeCatalog) -> None:
        sql(PARTITIONS, "ALTER TABLE events DETACH PARTITION may")
        detached = await tree_of(catalog, EVENTS)
        found = await place_of(catalog, Relation("public", "may"))
        sql("ALTER TABLE events ATTACH PARTITION may FOR VALUES FROM (0) TO (10)")

        assert "may" not in {each.relation.table for each in detached.partitions}
        assert found == Found()
        assert member(await tree_of(catalog, EVENTS), "may").attached

    async def test_the_columns_of_a_partitioned_table(self, sql: Sql, catalog: ShapeCatalog) -> None:
        sql(
            PARTITIONS,
            "ALTER TABLE events ADD more numeric(5,2), ADD gone int",
            "ALTER TABLE events DROP gone",
        )
        tree = await tree_of(catalog, EVENTS)
        assert tree.columns == ("id integer", "day integer", "note text", "more numeric(5,2)")
        assert tree.key == ("id integer", "day integer")
        plain = await tree_of(catalog, Relation("public", "may"))
        assert (plain.columns, plain.key) == ((), ())
        sql(
            "ALTER TABLE events ALTER note SET NOT NULL",
            "CREATE UNIQUE INDEX by_note ON events (note, day, id)",
            "ALTER TABLE events REPLICA IDENTITY USING INDEX by_note",
        )
        assert (await tree_of(catalog, EVENTS)).key == ("id integer", "day integer", "note text")

    @pytest.mark.parametrize(
        ("change", "file", "toast", "name"),
        [
            ("TRUNCATE t", True, False, False),
            ("VACUUM FULL t", True, False, False),
            ("CLUSTER t USING t_pkey", True, False, False),
            ("ALTER TABLE t SET UNLOGGED", True, True, False),
            ("ALTER TABLE t ALTER n TYPE bigint", True, True, False),
            ("ALTER TABLE t ADD x timestamptz DEFAULT clock_timestamp()", True, True, False),
            ("ALTER TABLE t RENAME TO u; ALTER TABLE u RENAME TO t", False, False, True),
            ("ALTER TABLE t SET SCHEMA other; ALTER TABLE other.t SET SCHEMA public", False, False, True),
            ("GRANT SELECT ON ALL TABLES IN SCHEMA public TO public", False, False, False),
            ("ALTER TABLE t ADD x int DEFAULT 5; ALTER TABLE t RENAME n TO m", False, False, False),
            ("CREATE INDEX ON t (n); ANALYZE t", False, False, False),
            ("ALTER TABLE t REPLICA IDENTITY FULL", False, False, False),
            ("VACUUM FREEZE pg_type", False, False, False),
            ("VACUUM FULL pg_type", False, False, False),
        ],
    )
    async def test_the_facts_that_rewrites_are_judged_by(
        self, sql: Sql, catalog: ShapeCatalog, change: str, file: bool, toast: bool, name: bool
    ) -> None:
        sql("CREATE SCHEMA other; CREATE TABLE t (id int PRIMARY KEY, n int, v text)")
        before = (await tree_of(catalog, T)).table
        sql(change)
        now = (await tree_of(catalog, T)).table

        assert before.toast
        assert before.placed
        assert (now.filenode != before.filenode, now.toast != before.toast) == (file, toast)
        assert (now.placed != before.placed) == name

    @pytest.mark.parametrize(
        ("change", "moved"),
        [
            (
                "ALTER TABLE events DETACH PARTITION may; ALTER TABLE events ATTACH PARTITION may"
                " FOR VALUES FROM (0) TO (10)",
                ["may"],
            ),
            (
                "ALTER TABLE june DETACH PARTITION june_0; ALTER TABLE june ATTACH PARTITION june_0"
                " FOR VALUES WITH (MODULUS 2, REMAINDER 0)",
                ["june_0"],
            ),
            ("CREATE TABLE july PARTITION OF events FOR VALUES FROM (20) TO (30)", []),
            ("TRUNCATE events; ANALYZE events; CREATE INDEX ON events (note)", []),
        ],
    )
    async def test_a_partition_that_was_away(
        self, sql: Sql, catalog: ShapeCatalog, change: str, moved: list[str]
    ) -> None:
        sql(PARTITIONS)
        before = {each.oid: each for each in (await tree_of(catalog, EVENTS)).partitions}
        sql(change)
        now = {each.oid: each for each in (await tree_of(catalog, EVENTS)).partitions}
        assert [
            each.relation.table for oid, each in before.items() if each.placed != now[oid].placed
        ] == moved

    @pytest.mark.parametrize(
        "change", ["GRANT USAGE ON SCHEMA app TO public", "ALTER SCHEMA app OWNER TO CURRENT_USER"]
    )
    async def test_rights_on_a_schema_cost_no_copy(
        self, sql: Sql, catalog: ShapeCatalog, change: str
    ) -> None:
        """They are given again with every deployment, and look like a schema that was renamed and back."""
        sql("CREATE SCHEMA app; CREATE TABLE app.t (id int PRIMARY KEY)")
        before = await tree_of(catalog, Relation("app", "t"))
        sql(change)
        assert not judge(before, await tree_of(catalog, Relation("app", "t")), 1, {}).again

    async def test_no_such_relation(self, catalog: ShapeCatalog) -> None:
        assert await place_of(catalog, Relation("public", "no")) is None
        assert await place_of(catalog, Relation("no", "t")) is None

    @pytest.mark.parametrize(
        ("change", "filenode", "layout"),
        [
            ("TRUNCATE t", True, False),
            ("VACUUM FULL t", True, False),
            ("CLUSTER t USING t_pkey", True, False),
            ("ALTER TABLE t ALTER n TYPE bigint", True, True),
            ("ALTER TABLE t ADD x timestamptz DEFAULT clock_timestamp()", True, True),
            ("ALTER TABLE t ADD x int DEFAULT 5", False, True),
            ("ALTER TABLE t DROP n", False, True),
            ("ALTER TABLE t RENAME n TO m", False, True),
            ("ALTER TABLE t ALTER v TYPE text", False, True),
            ("ANALYZE t", False, False),
            ("UPDATE t SET n = 2", False, False),
            ("REINDEX TABLE t", False, False),
            ("VACUUM FREEZE pg_attribute", False, False),
            ("VACUUM FULL pg_attribute", False, False),
        ],
    )
    async def test_what_changes_a_table(
        self, sql: Sql, catalog: ShapeCatalog, change: str, filenode: bool, layout: bool
    ) -> None:
        sql("CREATE TABLE t (id int PRIMARY KEY, n int, v varchar(10)); INSERT INTO t VALUES (1, 1)")
        before = (await tree_of(catalog, T)).table
        sql(change)
        now = (await tree_of(catalog, T)).table

        assert now.oid == before.oid
        assert (now.filenode != before.filenode, now.layout != before.layout) == (filenode, layout)
        assert now.identity == before.identity

    @pytest.mark.parametrize(
        "change",
        [
            "ALTER TABLE t REPLICA IDENTITY FULL",
            "ALTER TABLE t REPLICA IDENTITY NOTHING",
            "ALTER TABLE t REPLICA IDENTITY USING INDEX t_n_key",
            "ALTER TABLE t DROP CONSTRAINT t_pkey",
            "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (n)",
            "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id) DEFERRABLE",
        ],
    )
    async def test_what_changes_an_identity(self, sql: Sql, catalog: ShapeCatalog, change: str) -> None:
        sql("CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL UNIQUE)")
        before = (await tree_of(catalog, T)).table
        sql(change)
        now = (await tree_of(catalog, T)).table

        assert now.identity != before.identity
        assert (now.oid, now.filenode) == (before.oid, before.filenode)

    async def test_a_rewrite_forgets_what_old_rows_had_and_shows_as_one(
        self, sql: Sql, catalog: ShapeCatalog
    ) -> None:
        """Else a column whose default was read too late would be null in the lake."""
        sql(
            "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)",
            "ALTER TABLE t ADD n int DEFAULT 5",
        )
        before = (await tree_of(catalog, T)).table
        sql("VACUUM FULL t")
        facts = await facts_of(catalog)

        assert facts.columns[1].missing is None
        assert facts.tree.table.filenode != before.filenode
        assert facts.tree.table.layout != before.layout


class TestFacts:
    async def test_a_table(self, sql: Sql, catalog: ShapeCatalog) -> None:
        sql(
            """CREATE TABLE t (gone int, "Id" int PRIMARY KEY, n numeric(12,2), v varchar(10), note text,
                               code int NOT NULL UNIQUE, twice int GENERATED ALWAYS AS (code * 2) STORED,
                               maybe int UNIQUE)""",
            "ALTER TABLE t DROP gone",
        )

        facts = await facts_of(catalog)

        assert (facts.kind, facts.replica_identity, facts.has_children) == ("r", "d", False)
        assert [(each.name, each.attnum, each.not_null) for each in facts.columns] == [
            ("Id", 2, True),
            ("n", 3, False),
            ("v", 4, False),
            ("note", 5, False),
            ("code", 6, True),
            ("twice", 7, False),
            ("maybe", 8, False),
        ]
        assert [each.name for each in facts.columns if each.toastable] == ["n", "v", "note"]
        assert facts.key == ("Id",)
        assert facts.indexes == (
            IndexFacts("t_pkey", ("Id",), is_primary=True),
            IndexFacts("t_code_key", ("code",)),
        )
        assert facts.leaves == (LeafFacts(T, identity=("Id",), has_toast=True),)
        assert to_columns(facts, ["n", "Id"]) == [
            Column("Id", "integer", not_null=True),
            Column("n", "numeric(12,2)"),
        ]
        assert await catalog.facts(public("no", "none")) == {}

    async def test_it_survives_json(self, sql: Sql, catalog: ShapeCatalog) -> None:
        sql(PARTITIONS, "ALTER TABLE events ADD x text DEFAULT 'é\"'")

        facts = await facts_of(catalog, EVENTS)

        assert msgspec.json.decode(msgspec.json.encode(facts), type=TableFacts) == facts

    @pytest.mark.parametrize(
        ("table", "key", "identity"),
        [
            ("(a int, b int, PRIMARY KEY (b, a))", ("b", "a"), ("b", "a")),
            ("(a int PRIMARY KEY DEFERRABLE, b int)", (), ()),
            ("(a int, b int NOT NULL UNIQUE)", (), ()),
            ("(a int, b int)", (), ()),
        ],
    )
    async def test_keys(
        self, sql: Sql, catalog: ShapeCatalog, table: str, key: tuple[str, ...], identity: tuple[str, ...]
    ) -> None:
        sql(f"CREATE TABLE t {table}")

        facts = await facts_of(catalog)

        assert (facts.key, facts.leaves[0].identity) == (key, identity)

    async def test_replica_identities(self, sql: Sql, catalog: ShapeCatalog) -> None:
        sql(
            "CREATE TABLE t (a int PRIMARY KEY, b int NOT NULL, c text)",
            "CREATE UNIQUE INDEX by_b ON t (b) INCLUDE (c)",
            "CREATE UNIQUE INDEX partial ON t (b) WHERE a > 0",
            "CREATE UNIQUE INDEX expression ON t ((b + 1))",
            "ALTER TABLE t REPLICA IDENTITY USING INDEX by_b",
        )
        by_index = await facts_of(catalog)
        sql("ALTER TABLE t REPLICA IDENTITY FULL")
        full = await facts_of(catalog)
        sql("ALTER TABLE t REPLICA IDENTITY NOTHING")
        nothing = await facts_of(catalog)
        sql("ALTER TABLE t REPLICA IDENTITY USING INDEX by_b", "DROP INDEX by_b")
        dropped = await facts_of(catalog)

        assert {each.name for each in by_index.indexes} == {"t_pkey", "by_b"}
        assert (by_index.key, by_index.leaves[0].identity) == (("b",), ("b",))
        assert (full.key, full.leaves[0].carries(("a",))) == (("a",), True)
        assert (nothing.key, nothing.leaves[0].carries(("a",))) == (("a",), False)
        assert (dropped.replica_identity, dropped.key, dropped.leaves[0].identity) == ("i", (), ())

    async def test_leaves_have_identities_of_their_own(self, sql: Sql, catalog: ShapeCatalog) -> None:
        sql(
            PARTITIONS, "ALTER TABLE june_0 REPLICA IDENTITY FULL", "ALTER TABLE may REPLICA IDENTITY NOTHING"
        )

        facts = await facts_of(catalog, EVENTS)

        leaves = {leaf.relation.table: leaf for leaf in facts.leaves}
        assert facts.key == ("day", "id")
        assert {name: leaf.carries(facts.key) for name, leaf in leaves.items()} == {
            "may": False,
            "june_0": True,
            "june_1": True,
        }
        assert leaves["june_1"] == LeafFacts(
            leaves["june_1"].relation, identity=("day", "id"), has_toast=True
        )

    async def test_toast_tables_are_only_where_a_row_may_need_one(
        self, sql: Sql, catalog: ShapeCatalog
    ) -> None:
        sql("CREATE TABLE t (id int PRIMARY KEY, v varchar(20), n numeric(12,2))")

        assert not (await facts_of(catalog)).leaves[0].has_toast

    @pytest.mark.parametrize(
        ("create", "kind", "persistence"),
        [
            ("CREATE VIEW t AS SELECT 1 AS id", "v", "p"),
            ("CREATE MATERIALIZED VIEW t AS SELECT 1 AS id", "m", "p"),
            ("CREATE UNLOGGED TABLE t (id int PRIMARY KEY)", "r", "u"),
            ("CREATE SEQUENCE t", "S", "p"),
        ],
    )
    async def test_what_is_no_table(
        self, sql: Sql, catalog: ShapeCatalog, create: str, kind: str, persistence: str
    ) -> None:
        sql(create)

        facts = await facts_of(catalog)

        assert (facts.kind, facts.leaves[0].persistence) == (kind, persistence)

    async def test_names(self, sql: Sql, catalog: ShapeCatalog) -> None:
        sql(PARTITIONS, "CREATE VIEW v AS SELECT 1")

        assert sorted(await catalog.table_names()) == public("events", "june", "june_0", "june_1", "may")


class TestMissingValues:
    async def test_every_kind_of_default(
        self, postgres: PrivatePostgres, database: str, sql: Sql, catalog: ShapeCatalog
    ) -> None:
        """What the catalog says old rows have is what Postgres prints for the old row."""
        defaults = {
            "int": "5",
            "text": "E'x,\"y\" {z} \\\\ ''q\\n\\t'",
            "varchar(4)": "'NULL'",
            "char(3)": "''",
            "timestamptz": "now()",
            "date": "'infinity'",
            "int[]": "'{1,2}'",
            "text[]": "'{\"a b\",NULL}'",
            "box": "'((1,2),(3,4))'",
            "box[]": "'{((1,2),(3,4));((1,2),(3,5))}'",
            "point": "'(1,2)'",
            "bytea": "'\\xdead'",
            "float8": "'NaN'",
            "jsonb": '\'{"a": [1, "b"]}\'',
            "bool": "true",
        }
        sql("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
        added = [
            f"ADD c{place} {kind} DEFAULT {value}" for place, (kind, value) in enumerate(defaults.items())
        ]
        sql(f"ALTER TABLE t {', '.join(added)}, ADD none int, ADD nothing text DEFAULT NULL")
        texts = ", ".join(f"format('%s', c{place})" for place in range(len(defaults)))
        with psycopg.connect(postgres.conninfo(database), options=PINNED_SESSION) as session:
            [old_row] = session.execute(f"SELECT {texts} FROM t".encode()).fetchall()

        columns = (await facts_of(catalog)).columns[1:]

        assert [column.missing for column in columns] == [*old_row, None, None]

    async def test_a_partitioned_tables_are_in_its_leaves(self, sql: Sql, catalog: ShapeCatalog) -> None:
        sql(
            PARTITIONS,
            "ALTER TABLE events ADD x int DEFAULT 5",
            "ALTER TABLE events ALTER x SET DEFAULT 6",
            "CREATE TABLE july PARTITION OF events FOR VALUES FROM (20) TO (30)",
        )

        facts = await facts_of(catalog, EVENTS)

        assert [column.missing for column in facts.columns] == [None, None, None, "5"]


class TestTypes:
    SETUP = """
        CREATE SCHEMA other; CREATE SCHEMA "Other one";
        CREATE TYPE mood AS ENUM ('ok'); CREATE TYPE other.mood2 AS ENUM ('ok');
        CREATE TYPE "Odd Type" AS ENUM ('ok'); CREATE TYPE other."Odd" AS ENUM ('ok');
        CREATE TYPE "Other one".plain AS ENUM ('ok');
        CREATE DOMAIN other.price AS numeric(12,2); CREATE DOMAIN price2 AS other.price;
        CREATE DOMAIN other.price3 AS price2 CHECK (value > 0); CREATE DOMAIN short AS varchar(20);
        CREATE DOMAIN moods AS mood[];
        CREATE TABLE {table} (
            id int PRIMARY KEY, a mood, b other.mood2, c "Odd Type", d other."Odd", e mood[], f other.mood2[],
            g "Odd Type"[], h "Other one".plain[], i other.price, j price2, k other.price3, l short, m moods,
            n numeric, o numeric(10,3), p numeric(5,-2), q varchar, r varchar(10), s char(3), t "char",
            u "char"[], v timestamp(3), w timestamptz, x timestamptz(0), y time(2) with time zone, z interval,
            aa interval day to second(2), ab bit(3), ac varbit(5), ad int[][], ae double precision, af real,
            ag smallint, ah bigint, ai boolean, aj jsonb, ak uuid, al inet, am int4range, an oid, ao name,
            ap tsvector, aq xml, ar money, at other.price[], au date
        )
    """

    @pytest.mark.parametrize("search_path", [None, "", "other", "other,public"])
    @pytest.mark.parametrize("table", [Relation("public", "t"), Relation("other", "t")])
    async def test_they_are_those_of_the_frames(
        self, postgres: PrivatePostgres, database: str, sql: Sql, search_path: str | None, table: Relation
    ) -> None:
        sql(self.SETUP.format(table=table))
        if search_path is not None:
            sql(f"ALTER DATABASE {database} SET search_path = {search_path or repr('')}")
        frame = self.insert_frame(postgres.conninfo(database), table)
        catalog = ShapeCatalog(
            lambda: connect(conninfo_to_dict(postgres.conninfo(database))), decoder_for("wal2json")
        )

        facts = await facts_of(catalog, table)
        await catalog.close()

        assert {each["name"]: each["type"] for each in frame["columns"]} == {
            column.name: column.type for column in facts.columns
        }
        bases = {column.name: column.base for column in facts.columns if column.base}
        mood = next(column.type for column in facts.columns if column.name == "a")
        assert bases == {
            "i": "numeric(12,2)",
            "j": "numeric(12,2)",
            "k": "numeric(12,2)",
            "l": "character varying(20)",
            "m": f"{mood}[]",
        }

    def insert_frame(self, conninfo: str, table: Relation) -> dict[str, list[dict[str, str]]]:
        with psycopg.connect(conninfo, autocommit=True, options=PINNED_SESSION) as session:
            session.execute("SELECT pg_create_logical_replication_slot('types', 'wal2json', true)")
            session.execute(f"INSERT INTO {table} (id) VALUES (1)".encode())
            [(_,), (frame,), (_,)] = session.execute(
                "SELECT data FROM pg_logical_slot_get_changes('types', NULL, NULL, 'format-version', '2')"
            ).fetchall()
        decoded: dict[str, list[dict[str, str]]] = json.loads(frame)
        return decoded

    @pytest.mark.parametrize(
        "name", ['"q""q"', '"back\\slash"', '"Other one".plain', '"Other one"."Odd"', '"fine"', "fine[]"]
    )
    async def test_unreadable_ones_are_known(
        self, postgres: PrivatePostgres, database: str, sql: Sql, catalog: ShapeCatalog, name: str
    ) -> None:
        sql('CREATE SCHEMA "Other one"')
        sql(
            f"CREATE TYPE {name.removesuffix('[]')} AS ENUM ('ok')",
            f"CREATE TABLE t (id int PRIMARY KEY, v {name})",
        )
        try:
            self.insert_frame(postgres.conninfo(database), T)
            readable = True
        except json.JSONDecodeError:
            readable = False

        facts = await facts_of(catalog)

        assert catalog.decoder.is_unreadable(facts.columns[1].type) is not readable


class TestTheSession:
    async def test_it_waits_for_no_lock(
        self, postgres: PrivatePostgres, database: str, sql: Sql, catalog: ShapeCatalog
    ) -> None:
        sql(PARTITIONS, "ALTER TABLE events ADD x int DEFAULT 5", "CREATE VIEW v AS SELECT * FROM events")
        with psycopg.connect(postgres.conninfo(database)) as session:
            session.execute("LOCK TABLE events, may, june, june_0, june_1 IN ACCESS EXCLUSIVE MODE")
            async with asyncio.timeout(20):
                facts = await catalog.facts([EVENTS, *public("may", "v")])
                assert await catalog.trees([EVENTS]) == [facts[EVENTS].tree]
                assert await place_of(catalog, Relation("public", "june_0")) is not None

        assert facts.keys() == {EVENTS, *public("may", "v")}

    async def test_a_session_that_was_ended_is_opened_again(
        self, postgres: PrivatePostgres, database: str, sql: Sql, catalog: ShapeCatalog
    ) -> None:
        sql("CREATE TABLE t (id int PRIMARY KEY)")
        first = await tree_of(catalog, T)
        postgres.psql(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            f" WHERE datname = '{database}' AND pid <> pg_backend_pid()"
        )

        assert await tree_of(catalog, T) == first
        assert (await facts_of(catalog)).tree == first

    async def test_questions_at_the_same_time(self, sql: Sql, catalog: ShapeCatalog) -> None:
        sql(PARTITIONS)

        several = await asyncio.gather(*(catalog.facts([EVENTS]) for _ in range(3)))
        mixed = await asyncio.gather(
            catalog.facts([EVENTS]), catalog.trees([EVENTS]), place_of(catalog, EVENTS)
        )

        facts = several[0][EVENTS]
        assert several == [{EVENTS: facts}] * 3
        assert list(mixed) == [{EVENTS: facts}, [facts.tree], Found()]

    async def test_no_answer_is_an_error(self, postgres: PrivatePostgres) -> None:
        catalog = ShapeCatalog(
            lambda: connect(conninfo_to_dict(postgres.conninfo("no_such_database"))), decoder_for("wal2json")
        )

        with pytest.raises(ConnectionFailed):
            await place_of(catalog, T)


async def test_sizes_count_long_values_and_no_missing_table(
    postgres: PrivatePostgres, database: str, sql: Sql
) -> None:
    long_value = "SELECT string_agg(md5(g::text), '') FROM generate_series(1, 20000) g"
    sql("CREATE TABLE t (id int PRIMARY KEY, v text)", f"INSERT INTO t VALUES (1, ({long_value}))")
    session = await connect(conninfo_to_dict(postgres.conninfo(database)))
    try:
        assert await total_bytes(session, []) == 0
        assert await total_bytes(session, public("gone")) == 0
        assert 300_000 < await total_bytes(session, [T, *public("gone")]) < 3_000_000
    finally:
        await session.close()


async def test_values_that_follow_search_path(catalog: ShapeCatalog, sql: Sql) -> None:
    """By what the server prints with and without a schema, however deep in a type."""
    sql(
        "CREATE TYPE pair AS (at regclass, n int); CREATE DOMAIN named AS regtype;"
        " CREATE TYPE deep AS (pairs pair[], x named); CREATE TYPE plain AS (n int, t text);"
        " CREATE TYPE spans AS RANGE (subtype = regclass, subtype_opclass = oid_ops);"
        " CREATE TABLE t (id int PRIMARY KEY, a regclass, b regproc[], c pair, d named, e deep, f spans,"
        " g regcollation, k plain, l oid, m text[], n regrole, o regnamespace, p name, q int4range)"
    )
    columns = (await facts_of(catalog)).columns

    assert [each.name for each in columns if each.by_search_path] == list("abcdefg")


@pytest.mark.parametrize(
    ("change", "is_another"),
    [
        ("ALTER TYPE pair ADD ATTRIBUTE x int", True),
        ("ALTER TYPE pair DROP ATTRIBUTE n", True),
        ("ALTER TYPE pair ADD ATTRIBUTE x int; ALTER TYPE pair DROP ATTRIBUTE x", True),
        ("ALTER TYPE other ADD ATTRIBUTE x int", False),
        ("ALTER TABLE t ADD u int; CREATE INDEX ON t (u)", False),
    ],
)
@pytest.mark.parametrize("type_name", ["pair", "pair[]", "held", "deep"])
async def test_the_attributes_of_composite_types(
    catalog: ShapeCatalog, sql: Sql, change: str, is_another: bool, type_name: str
) -> None:
    """Rows that nobody touched are printed in another way after it: a look and the facts both tell."""
    sql(
        "CREATE TYPE pair AS (m int, n int); CREATE TYPE other AS (m int); CREATE DOMAIN held AS pair;"
        f" CREATE TYPE deep AS (n int, pairs pair[]); CREATE TABLE t (id int PRIMARY KEY, v {type_name})"
    )
    before, was = (await tree_of(catalog, T)).table, (await facts_of(catalog)).columns[1]
    sql(change)
    now, column = (await tree_of(catalog, T)).table, (await facts_of(catalog)).columns[1]

    assert was.composites
    assert (now.identity != before.identity, column.composites != was.composites) == (is_another, is_another)


async def test_a_table_without_composite_types_has_the_identity_of_before(
    catalog: ShapeCatalog, sql: Sql
) -> None:
    sql("CREATE TABLE t (id int PRIMARY KEY, v text)")
    assert (await tree_of(catalog, T)).table.identity == "d 1 1 0 1 1"
    assert [each.composites for each in (await facts_of(catalog)).columns] == ["", ""]

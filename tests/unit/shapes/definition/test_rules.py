"""What is refused of shapes, by the exact lines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.decoding.plugins import decoder_for
from penstock.model.relation import Relation
from penstock.model.shape import Shape, ShapesFile
from penstock.postgres.catalog.table_facts import ColumnFacts, IndexFacts, LeafFacts, TableFacts, missing_text
from penstock.postgres.catalog.table_tree import Member, Tree
from penstock.shapes.definition.table_rules import refusals

DECODER = decoder_for("wal2json")
ORDERS = Relation("public", "orders")
MAY = Relation("public", "orders_may")
JUNE = Relation("public", "Orders June")
ID = ColumnFacts("id", 1, "integer", not_null=True)
CODE = ColumnFacts("code", 2, "integer", not_null=True)
NOTE = ColumnFacts("note", 3, "text", toastable=True)
PRIMARY = IndexFacts("orders_pkey", ("id",), is_primary=True)
UNIQUE = IndexFacts("Code key", ("code",))
TABLE = TableFacts(
    Tree(Member(ORDERS, 1, 1, "a")),
    (ID, CODE, NOTE),
    (PRIMARY,),
    leaves=(LeafFacts(ORDERS, identity=("id",), has_toast=True),),
)
SHAPE = Shape("open", Relation("public", "orders"))
FULL = LeafFacts(ORDERS, replica_identity="f", has_toast=True)


def partitioned(*leaves: LeafFacts) -> TableFacts:
    members = tuple(Member(leaf.relation, 2 + place, 1, "a") for place, leaf in enumerate(leaves))
    tree = Tree(Member(ORDERS, 1, 0, "a"), members, is_partitioned=True)
    return TABLE._replace(tree=tree, kind="p", leaves=leaves)


def lines(facts: TableFacts | None, shape: Shape = SHAPE, tables: tuple[Relation, ...] = ()) -> list[str]:
    """The lines about a shape, without the file and the shape that they begin with."""
    file = ShapesFile("shapes.toml", "/lake", (shape,))
    start = "shapes.toml: shape 'open': "
    found = refusals(file, {} if facts is None else {facts.relation: facts}, DECODER, tables)
    assert all(line.startswith(start) and "\n" not in line for line in found)
    return [line.removeprefix(start) for line in found]


def with_where() -> Shape:
    return Shape("open", SHAPE.table, where="code > 1")


def with_columns(*columns: str) -> Shape:
    return Shape("open", SHAPE.table, columns=columns)


@pytest.mark.parametrize(
    ("facts", "shape"),
    [
        (TABLE, SHAPE),
        (TABLE, with_columns("id", "note")),
        (TABLE._replace(leaves=(FULL,), replica_identity="f"), with_where()),
        (TABLE._replace(leaves=(LeafFacts(ORDERS, identity=("id",)),)), with_where()),
        (TABLE._replace(columns=(ID, CODE)), with_where()),
        (partitioned(), with_where()),
        (partitioned(LeafFacts(MAY, identity=("id",)), FULL._replace(relation=JUNE)), SHAPE),
        (partitioned(FULL._replace(relation=MAY)), with_where()),
        (partitioned(LeafFacts(MAY, replica_identity="i", identity=("id", "code"))), SHAPE),
        (partitioned(LeafFacts(MAY, identity=("id",)))._replace(replica_identity="n"), SHAPE),
        (TABLE._replace(columns=(*TABLE.columns, ColumnFacts("a;b", 4, "text"))), with_columns("id")),
        (TABLE._replace(columns=(*TABLE.columns, ColumnFacts("a.b", 4, "text"))), SHAPE),
    ],
)
def test_tables_that_pass(facts: TableFacts, shape: Shape) -> None:
    assert lines(facts, shape) == []


def test_a_unique_index_that_is_the_replica_identity_wins_over_the_primary_key() -> None:
    facts = TABLE._replace(
        indexes=(PRIMARY, UNIQUE._replace(is_identity=True)),
        replica_identity="i",
        leaves=(LeafFacts(ORDERS, replica_identity="i", identity=("code",)),),
    )

    assert facts.key == ("code",)
    assert lines(facts) == []
    assert lines(facts, with_columns("id", "note")) == [
        "columns lacks 'code', of the key of public.orders. Fix: add 'code' to columns"
    ]


@pytest.mark.parametrize(
    ("tables", "fix"),
    [
        ((), "create it, or name one that is in the database that PGDATABASE names"),
        ((Relation("a", "b"),), "create it, or name one that is in the database that PGDATABASE names"),
        ((Relation("a", "b"), Relation("public", "order")), "did you mean public.order?"),
        ((Relation("public", "Orders"),), 'did you mean public."Orders"?'),
        ((Relation("a_long_schema_name", "orders"),), "did you mean a_long_schema_name.orders?"),
    ],
)
def test_missing_tables(tables: tuple[Relation, ...], fix: str) -> None:
    assert lines(None, tables=tables) == [f"there is no table public.orders. Fix: {fix}"]


def test_missing_columns() -> None:
    assert lines(TABLE, with_columns("id", "notes", "zzz")) == [
        "public.orders has no column 'notes'. Fix: did you mean 'note'?",
        "public.orders has no column 'zzz'. Fix: take it out; the table has id, code, note",
    ]


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        (
            TABLE._replace(kind="v"),
            "public.orders is a view, whose changes are not sent. Fix: name a table",
        ),
        (
            TABLE._replace(kind="f"),
            "public.orders is a foreign table, whose changes are not sent. Fix: name a table",
        ),
        (
            TABLE._replace(leaves=(LeafFacts(ORDERS, persistence="u"),)),
            "public.orders is unlogged, and its changes are not sent."
            " Fix: ALTER TABLE public.orders SET LOGGED",
        ),
        (
            TABLE._replace(leaves=(LeafFacts(ORDERS, persistence="t"),)),
            "public.orders is temporary, and its changes are not sent. Fix: name a permanent table",
        ),
        (
            TABLE._replace(has_children=True),
            "other tables inherit from public.orders, and their rows would be left out."
            " Fix: name the tables that inherit, or make them partitions",
        ),
        (
            partitioned(LeafFacts(MAY, kind="f")),
            "the partition public.orders_may is a foreign table, whose changes are not sent. Fix: ALTER TABLE"
            " public.orders DETACH PARTITION public.orders_may, or name the other partitions",
        ),
    ],
)
def test_tables_of_which_nothing_comes(facts: TableFacts, line: str) -> None:
    assert lines(facts) == [line]


def test_system_tables() -> None:
    facts = TABLE._replace(tree=Tree(Member(Relation("pg_catalog", "pg_class"), 1259, 0, "")))

    assert lines(facts, Shape("open", Relation("pg_catalog", "pg_class"))) == [
        "pg_catalog.pg_class is a system table, whose changes are not sent. Fix: name a table of your own"
    ]


NO_KEY = "public.orders has no key: no primary key, and no unique index that is its replica identity"


@pytest.mark.parametrize(
    ("facts", "shape", "expected"),
    [
        (
            TABLE._replace(indexes=()),
            SHAPE,
            [
                f"{NO_KEY}. Fix: ALTER TABLE public.orders ADD PRIMARY KEY (…), with the columns that"
                " identify a row"
            ],
        ),
        (
            TABLE._replace(indexes=(UNIQUE,)),
            SHAPE,
            [f'{NO_KEY}. Fix: ALTER TABLE public.orders REPLICA IDENTITY USING INDEX "Code key"'],
        ),
        (
            TABLE._replace(indexes=(UNIQUE,)),
            with_where(),
            [
                f"{NO_KEY}. Fix: ALTER TABLE public.orders ADD PRIMARY KEY (…), with the columns that"
                " identify a row",
                "where needs REPLICA IDENTITY FULL on public.orders: an update leaves out long values that"
                " it doesn't change, and the row can't be judged without them. Fix: ALTER TABLE public.orders"
                " REPLICA IDENTITY FULL",
            ],
        ),
        (
            TABLE._replace(indexes=(PRIMARY._replace(is_immediate=False),)),
            SHAPE,
            [
                "the key of public.orders is deferrable, so rows may share it inside a transaction."
                ' Fix: ALTER TABLE public.orders DROP CONSTRAINT "orders_pkey", ADD PRIMARY KEY ("id")'
            ],
        ),
        (
            TABLE._replace(replica_identity="i", leaves=(LeafFacts(ORDERS, replica_identity="i"),)),
            SHAPE,
            [
                "public.orders has no key: the index of its replica identity was dropped."
                " Fix: ALTER TABLE public.orders REPLICA IDENTITY DEFAULT"
            ],
        ),
        (
            TABLE._replace(replica_identity="n", leaves=(LeafFacts(ORDERS, replica_identity="n"),)),
            SHAPE,
            [
                "updates and deletes of public.orders don't carry the key (id)."
                " Fix: ALTER TABLE public.orders REPLICA IDENTITY DEFAULT"
            ],
        ),
        (
            partitioned(
                LeafFacts(MAY, replica_identity="n"),
                LeafFacts(JUNE, replica_identity="i", identity=("code",)),
                LeafFacts(ORDERS, identity=("id",)),
            ),
            SHAPE,
            [
                "updates and deletes of public.orders_may and 1 more don't carry the key (id)."
                " Fix: ALTER TABLE public.orders_may REPLICA IDENTITY DEFAULT;"
                ' ALTER TABLE public."Orders June" REPLICA IDENTITY DEFAULT'
            ],
        ),
        (
            partitioned(
                LeafFacts(MAY, replica_identity="n", has_toast=True),
                FULL._replace(relation=JUNE),
            ),
            with_where(),
            [
                "where needs REPLICA IDENTITY FULL on public.orders_may: an update leaves out long values"
                " that it doesn't change, and the row can't be judged without them."
                " Fix: ALTER TABLE public.orders_may REPLICA IDENTITY FULL"
            ],
        ),
    ],
)
def test_keys_and_identities(facts: TableFacts, shape: Shape, expected: list[str]) -> None:
    assert lines(facts, shape) == expected


def test_many_leaves_stay_one_line() -> None:
    leaves = [LeafFacts(Relation("public", f"p{place}"), replica_identity="n") for place in range(23)]

    (line,) = lines(partitioned(*leaves))

    assert line.count("ALTER TABLE") == 20
    assert line.endswith("; and so for 3 more")


ADVICE = "Fix: rename the column, or list in columns those to keep"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a b"], [f"a Delta table can't hold a column named 'a b'. {ADVICE}"]),
        (
            ["a\nb", "x=y"],
            [
                f"a Delta table can't hold a column named 'a\\nb'. {ADVICE}",
                f"a Delta table can't hold a column named 'x=y'. {ADVICE}",
            ],
        ),
        (["_Penstock_x"], [f"column '_Penstock_x' begins with _penstock_, as our own do. {ADVICE}"]),
        (
            ["A", "a"],
            [f"columns 'A' and 'a' are equal but for case: Spark can't tell them apart. {ADVICE}"],
        ),
    ],
)
def test_names_that_delta_cannot_hold(names: list[str], expected: list[str]) -> None:
    more = tuple(ColumnFacts(name, 10 + place, "integer") for place, name in enumerate(names))

    assert lines(TABLE._replace(columns=(*TABLE.columns, *more))) == expected


def test_a_where_reads_columns_that_are_not_wanted() -> None:
    more = (ColumnFacts("A", 10, "integer"), ColumnFacts("a", 11, "integer"))
    full = tuple(leaf._replace(replica_identity="f") for leaf in TABLE.leaves)
    facts = TABLE._replace(columns=(*TABLE.columns, *more), leaves=full)
    narrow = with_columns("id", "a")

    assert lines(facts, narrow) == []
    assert lines(facts, replace(narrow, where="a > 1")) == [
        "columns 'A' and 'a' are equal but for case: Spark can't tell them apart."
        " Fix: rename one: a where reads all columns"
    ]


def test_a_database_that_is_not_utf8() -> None:
    assert lines(TABLE._replace(encoding="LATIN1")) == [
        "the database's encoding is LATIN1, which wal2json does not translate."
        " Fix: use a database with ENCODING 'UTF8'"
    ]


def test_a_type_that_wal2json_cannot_write_is_refused_even_where_the_column_is_not_wanted() -> None:
    facts = TABLE._replace(columns=(*TABLE.columns, ColumnFacts("mood", 4, '"My Types".mood')))

    assert lines(facts, with_columns("id")) == [
        "wal2json can't write the type \"My Types\".mood of column 'mood': its name needs quotes."
        " Fix: rename the type or its schema"
    ]


def test_every_shape_is_judged() -> None:
    shapes = (SHAPE, Shape("none", Relation("public", "none")), with_columns("note"))
    file = ShapesFile("f.toml", "/lake", shapes)

    assert refusals(file, {ORDERS: TABLE}, DECODER) == [
        "f.toml: shape 'none': there is no table public.none. Fix: create it, or name one that is in the"
        " database that PGDATABASE names",
        "f.toml: shape 'open': columns lacks 'id', of the key of public.orders. Fix: add 'id' to columns",
    ]


@pytest.mark.parametrize(
    ("array", "text"),
    [("{5}", "5"), ('{""}', ""), ('{"a\\"b\\\\c\nd"}', 'a"b\\c\nd'), ("{(3,4),(1,2)}", "(3,4),(1,2)")],
)
def test_missing_values(array: str, text: str) -> None:
    assert missing_text(array) == text


def test_a_virtual_column_can_not_be_listed() -> None:
    facts = TABLE._replace(columns=(*TABLE.columns, ColumnFacts("v", 9, "integer", is_virtual=True)))

    assert lines(facts) == []
    assert lines(facts, Shape("open", Relation(*ORDERS), columns=("id", "v"))) == [
        "column 'v' of public.orders is generated and not stored: no change has it."
        " Fix: take it out, or make it STORED"
    ]


REGCLASS = ColumnFacts("of", 4, "regclass", by_search_path=True)
BY_NAME = (
    "values of column 'of' (regclass) are names that Postgres prints by search_path: a stream has them as"
)
BY_TEXT = "Fix: read the shape from Postgres, without --from; or make the column text or oid"


@pytest.mark.parametrize(
    ("shape", "fixes"),
    [
        (SHAPE, [f"{BY_TEXT}; or list in columns those to keep"]),
        (with_columns("id", "of"), [f"{BY_TEXT}; or list in columns those to keep"]),
        (with_columns("id", "note"), []),
        # A where reads all columns.
        (replace(with_columns("id"), where="of = 't'"), [BY_TEXT]),
    ],
)
def test_from_a_stream_no_value_follows_search_path(shape: Shape, fixes: list[str]) -> None:
    facts = TABLE._replace(columns=(*TABLE.columns, REGCLASS), leaves=(FULL,), replica_identity="f")
    file = ShapesFile("shapes.toml", "/lake", (shape,))

    assert refusals(file, {ORDERS: facts}, DECODER) == []
    found = refusals(file, {ORDERS: facts}, DECODER, from_stream=True)
    assert [line.partition(". Fix")[2] for line in found] == [fix.removeprefix("Fix") for fix in fixes]
    assert all(BY_NAME in line for line in found)

from __future__ import annotations

import pytest

from penstock.decoding.plugins import decoder_for
from penstock.model.relation import Relation
from penstock.model.shape import Shape
from penstock.postgres.catalog.table_catalog import column_facts
from penstock.postgres.catalog.table_facts import ColumnFacts, IndexFacts, LeafFacts, TableFacts, to_columns
from penstock.postgres.catalog.table_tree import Member, Tree
from penstock.shapes.following import drift as drift_module
from penstock.shapes.following.drift import Drift

DECODER = decoder_for("wal2json")
ORDERS = Relation("public", "orders")
ID = ColumnFacts("id", 1, "integer", not_null=True)
CODE = ColumnFacts("code", 2, "integer", not_null=True)
NOTE = ColumnFacts("note", 3, "character varying(20)", toastable=True)
ADDED = ColumnFacts("added", 4, "integer", missing="5")
PRIMARY = IndexFacts("orders_pkey", ("id",), is_primary=True)
LEAF = LeafFacts(ORDERS, identity=("id",))
BEFORE = TableFacts(Tree(Member(ORDERS, 1, 1, "a")), (ID, CODE, NOTE), (PRIMARY,), leaves=(LEAF,))
ALL = Shape("open", Relation("public", "orders"))
LISTED = Shape("open", ALL.table, columns=("id", "note"))
WHERE = Shape("open", ALL.table, where="code > 1")
RESNAPSHOT = "Fix: stop penstock shapes, and start it with --resnapshot open"


def compare(shape: Shape, before: TableFacts, now: TableFacts) -> Drift:
    return drift_module.compare(shape, before, now, DECODER)


def having(*columns: ColumnFacts) -> TableFacts:
    return BEFORE._replace(columns=columns)


@pytest.mark.parametrize("shape", [ALL, LISTED, WHERE])
@pytest.mark.parametrize(
    "now",
    [
        BEFORE,
        having(ID, CODE, NOTE._replace(type="text")),
        having(ID, CODE, NOTE._replace(type="public.short", base="character varying(20)")),
        having(ID, CODE._replace(not_null=False), NOTE),
        having(NOTE, CODE, ID),
        BEFORE._replace(indexes=(PRIMARY._replace(name="renamed"), IndexFacts("more", ("code",)))),
        BEFORE._replace(replica_identity="f", leaves=(LEAF._replace(replica_identity="f"),)),
    ],
)
def test_what_changes_nothing(shape: Shape, now: TableFacts) -> None:
    assert compare(shape, BEFORE, now) == Drift(now)


def test_added_columns_bring_what_old_rows_have() -> None:
    now = having(ID, CODE, NOTE, ADDED)

    assert compare(ALL, BEFORE, now) == Drift(now, added=(ADDED,))
    assert compare(LISTED, BEFORE, now) == Drift(now)


def test_dropped_columns_are_kept() -> None:
    now = having(ID, CODE)
    kept = having(ID, CODE, NOTE)._replace(gone=("note",))

    assert compare(ALL, BEFORE, now) == Drift(kept, dropped=("note",))
    assert compare(LISTED, BEFORE, now) == Drift(kept, dropped=("note",))
    unlisted = having(ID, NOTE, CODE._replace(not_null=False))._replace(gone=("code",))
    assert compare(LISTED, BEFORE, having(ID, NOTE)) == Drift(unlisted), "the log may still have it"


def test_a_label_that_was_renamed_is_in_old_rows() -> None:
    mood = CODE._replace(type="mood", labels=("16 sad", "18 so so"))
    more = mood._replace(labels=("16 sad", "18 so so", "20 glad"))
    other = mood._replace(labels=("16 unhappy", "18 so so"))

    assert compare(ALL, having(ID, mood, NOTE), having(ID, more, NOTE)).again == ""
    assert compare(ALL, having(ID, mood, NOTE), having(ID, other, NOTE)).again == (
        "a label of column 'code' of public.orders was renamed: 'sad' to 'unhappy'"
    )
    assert compare(LISTED, having(ID, mood, NOTE), having(ID, other, NOTE)).again == "", "not listed"


@pytest.mark.parametrize(
    ("columns", "attributes", "again"),
    [
        ((ID, CODE, NOTE), 4, True),
        ((ID, CODE, NOTE, ADDED._replace(attnum=5)), 5, True),
        ((ID, CODE, NOTE, ADDED), 4, False),
        ((ID, CODE), 3, False),
        ((ID, CODE, ADDED), 4, False),
    ],
)
@pytest.mark.parametrize("shape", [ALL, LISTED])
def test_a_column_that_came_and_went_may_be_in_the_log(
    shape: Shape, columns: tuple[ColumnFacts, ...], attributes: int, again: bool
) -> None:
    before, now = BEFORE._replace(attributes=3), having(*columns)._replace(attributes=attributes)
    reason = "a column of public.orders was added and dropped again"

    assert compare(shape, before, now).again == (reason if again else "")
    assert compare(shape, BEFORE, now).again == "", "of a registry that doesn't know the number"


@pytest.mark.parametrize("columns", [None, ("id", "note")])
@pytest.mark.parametrize("now", [having(ID, NOTE), having(ID, CODE._replace(name="number"), NOTE)])
def test_what_where_names_must_stay(columns: tuple[str, ...] | None, now: TableFacts) -> None:
    for where in ("code > 1", "note = 'x' AND `Code`=1", "abs(code)=1"):
        shape = Shape("open", ALL.table, where=where, columns=columns)
        assert compare(shape, BEFORE, now) == Drift(
            BEFORE,
            stop="where needs column 'code', which public.orders no longer has."
            " Fix: correct the where of shape 'open' and start again",
        )
    for where in ("barcode > 1", "code_2 > 1", "note = 'x'", "note <> 'it\\'s code'", 'note = "code"'):
        assert compare(Shape("open", ALL.table, where=where), BEFORE, having(ID, NOTE)).stop == ""


def test_dropped_and_added_in_one_look() -> None:
    now = having(ID, NOTE, ADDED)

    drift = compare(ALL, BEFORE, now)

    kept = having(ID, NOTE, ADDED, CODE._replace(not_null=False))._replace(gone=("code",))
    assert drift == Drift(kept, (ADDED,), ("code",))


@pytest.mark.parametrize("shape", [ALL, LISTED])
def test_dropped_and_added_again_needs_a_snapshot(shape: Shape) -> None:
    again = having(ID, CODE, NOTE._replace(attnum=9))
    reason = "column 'note' of public.orders is another than before, under the same name"

    at_once = compare(shape, BEFORE, again)
    between = compare(shape, compare(shape, BEFORE, having(ID, CODE)).facts, again)

    assert at_once == between == Drift(again, again=reason)


def test_what_was_dropped_stays_known() -> None:
    first = compare(ALL, BEFORE, having(ID, CODE)).facts
    second = compare(ALL, first, having(ID)).facts
    third = compare(ALL, second, having(ID)).facts

    assert set(second.gone) == {"note", "code"}
    assert third == second


def test_another_type_under_another_column_is_only_a_snapshot() -> None:
    drift = compare(ALL, BEFORE, having(ID, CODE, NOTE._replace(attnum=9, type="bigint")))

    assert (bool(drift.again), drift.stop) == (True, "")


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (
            CODE._replace(type="smallint"),
            "was integer, int in the lake, and is smallint, smallint in the lake",
        ),
        (
            CODE._replace(type="public.amount", base="numeric(12,2)"),
            "was integer, int in the lake, and is public.amount, decimal(12,2) in the lake",
        ),
    ],
)
def test_another_type_stops_the_shape(column: ColumnFacts, said: str) -> None:
    drift = compare(ALL, BEFORE, having(ID, column, NOTE))

    assert drift == Drift(BEFORE, stop=f"column 'code' of public.orders {said}. {RESNAPSHOT}")
    assert compare(LISTED, BEFORE, having(ID, column, NOTE)).stop == ""


@pytest.mark.parametrize(
    ("old", "new", "wider"),
    [
        ("integer", "bigint", True),
        ("smallint", "bigint", True),
        ("bigint", "integer", False),
        ("numeric(10,2)", "numeric(12,4)", True),
        ("numeric(10,2)", "numeric(10,4)", False),
        ("numeric(10,2)", "numeric(9,2)", False),
        ("numeric(10,2)", "numeric", False),
        ("integer", "numeric(12,2)", False),
        ("real", "double precision", True),
        ("character varying(10)", "character varying(20)", None),
    ],
)
def test_a_wider_type_needs_no_more_than_a_snapshot(old: str, new: str, wider: bool | None) -> None:
    before, now = having(ID, CODE._replace(type=old)), having(ID, CODE._replace(type=new))
    drift = compare(ALL, before, now)

    if wider is None:
        assert drift == Drift(now)
        return
    assert (bool(drift.again), bool(drift.stop)) == (wider, not wider)
    if wider:
        assert drift.again == f"column 'code' of public.orders was {old} and is {new}, which is wider"


def test_more_digits_before_the_point_are_followed_in_place_while_the_file_stays() -> None:
    before = having(ID, CODE._replace(type="numeric(10,2)"), NOTE)
    wider = CODE._replace(type="numeric(12,2)")
    now = having(ID, wider, NOTE)

    assert compare(ALL, before, now) == Drift(now, widened=(wider,))
    assert compare(LISTED, before, now) == Drift(now), "not listed"
    said = "column 'code' of public.orders is numeric(12,2), which is wider"
    assert compare(ALL, before, now).by_snapshot(ALL) == Drift(now, again=said)
    # USING code * 10 makes a new file.
    rewritten = now._replace(tree=Tree(Member(ORDERS, 1, 2, "b")))
    assert "was numeric(10,2) and is numeric(12,2)" in compare(ALL, before, rewritten).again


def test_a_file_of_a_partition_counts_too() -> None:
    part = Member(Relation("public", "part"), 2, 2, "a")
    tree = Tree(Member(ORDERS, 1, 0, "a"), (part,), is_partitioned=True)
    before = having(ID, CODE._replace(type="numeric(10,2)"), NOTE)._replace(tree=tree)
    now = having(ID, CODE._replace(type="numeric(12,2)"), NOTE)

    new_part = Member(Relation("public", "more"), 3, 3, "a")
    more = now._replace(tree=tree._replace(partitions=(part, new_part)))
    assert compare(ALL, before, more).widened
    rewritten = now._replace(tree=tree._replace(partitions=(part._replace(filenode=9),)))
    assert compare(ALL, before, rewritten).again


def test_a_renamed_column_needs_a_snapshot() -> None:
    renamed = NOTE._replace(name="remark")

    assert compare(ALL, BEFORE, having(ID, CODE, renamed)).again == (
        "column 'note' of public.orders was renamed to 'remark'"
    )
    assert compare(LISTED, BEFORE, having(ID, CODE, renamed)) == Drift(
        BEFORE,
        stop="column 'note' of public.orders is now named 'remark'."
        " Fix: write 'remark' into the columns of shape 'open' and start again",
    )
    assert compare(LISTED, BEFORE, having(ID, CODE._replace(name="x"), NOTE)).again == ""


def test_exchanged_names_need_a_snapshot() -> None:
    now = having(ID, CODE._replace(name="note"), NOTE._replace(name="code"))

    assert compare(LISTED, BEFORE, now).again != ""


def test_another_table_needs_a_snapshot() -> None:
    now = BEFORE._replace(tree=Tree(Member(ORDERS, 2, 1, "a")))

    assert compare(ALL, BEFORE, now) == Drift(now, again="another table has taken the name public.orders")


def test_another_key_needs_a_snapshot() -> None:
    key = PRIMARY._replace(columns=("id", "code"))
    now = BEFORE._replace(indexes=(key,), leaves=(LEAF._replace(identity=("id", "code")),))

    assert compare(ALL, BEFORE, now).again == "the key of public.orders was (id) and is (id, code)"
    assert compare(LISTED, BEFORE, now).stop == (
        "columns lacks 'code', of the key of public.orders. Fix: add 'code' to columns"
    )
    turned = now._replace(indexes=(PRIMARY._replace(columns=("code", "id")),))
    assert compare(ALL, now, turned) == Drift(turned)


@pytest.mark.parametrize(
    ("shape", "now", "stop"),
    [
        (ALL, BEFORE._replace(indexes=()), "public.orders has no key"),
        (ALL, BEFORE._replace(leaves=(LEAF._replace(replica_identity="n", identity=()),)), "the key (id)"),
        (ALL, having(ID, ColumnFacts("a b", 4, "text")), "'a b'"),
        (WHERE, BEFORE._replace(leaves=(LEAF._replace(has_toast=True),)), "REPLICA IDENTITY FULL on"),
        (ALL, BEFORE._replace(leaves=(LEAF._replace(persistence="u"),)), "SET LOGGED"),
        (ALL, BEFORE._replace(has_children=True), "other tables inherit from"),
    ],
)
def test_a_broken_rule_stops_the_shape(shape: Shape, now: TableFacts, stop: str) -> None:
    drift = compare(shape, BEFORE, now)

    assert stop in drift.stop
    assert ". Fix: " in drift.stop
    assert drift == Drift(BEFORE, stop=drift.stop)


def test_another_attribute_of_a_composite_type_needs_a_snapshot() -> None:
    """Old rows are printed with it, and no change tells."""
    pair = ColumnFacts("pair", 4, "public.pair", composites="7.1 7.2")
    said = "a composite type in column 'pair' of public.orders got or lost an attribute"

    before = having(*BEFORE.columns, pair)
    assert compare(ALL, before, before).again == ""
    for now in ("7.1 7.2 7.3", "7.1 7.2-"):
        assert compare(ALL, before, having(*BEFORE.columns, pair._replace(composites=now))).again == said
    unknown = having(*BEFORE.columns, pair._replace(composites=""))
    assert compare(ALL, unknown, before).again == "", "of a registry that doesn't know them"


def test_from_a_stream_a_column_of_names_stops_the_shape() -> None:
    """Capture prints names by its search_path, and a snapshot with their schemas."""
    now = having(*BEFORE.columns, ColumnFacts("of", 4, "regclass", by_search_path=True))

    assert compare(ALL, BEFORE, now).stop == ""
    drift = drift_module.compare(ALL, BEFORE, now, DECODER, from_stream=True)
    assert drift == Drift(BEFORE, stop=drift.stop)
    assert "column 'of' (regclass) are names that Postgres prints by search_path" in drift.stop


def test_a_virtual_column_is_no_part_of_a_shape() -> None:
    """PostgreSQL 18: a query has its value, and changes have null."""
    row = ("v", 4, "integer", None, False, False, (), "v", False, "")
    virtual = column_facts(row, {}, DECODER)
    assert virtual == ColumnFacts("v", 4, "integer", is_virtual=True)
    assert not column_facts((*row[:-3], "s", False, ""), {}, DECODER).is_virtual
    now = having(*BEFORE.columns, virtual)

    assert to_columns(now, None) == to_columns(BEFORE, None)
    drift = compare(ALL, BEFORE, now)
    assert (drift.added, drift.again, drift.stop) == ((), "", "")

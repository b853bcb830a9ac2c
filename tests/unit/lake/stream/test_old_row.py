"""Whether a change carries its whole old row: FULL, another identity, and columns that came and went."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec
import pyarrow as pa
import pytest

from penstock.decoding.decoder import Cell, Cells
from penstock.decoding.rows import Column, LayoutChanged, RowIncomplete
from penstock.lake.jobs.changes import ShapeLayout
from penstock.lake.stream.flush import both_rows
from penstock.lake.stream.old_row import OldRow
from penstock.model.relation import Relation
from penstock.postgres.catalog.table_facts import ColumnFacts, IndexFacts, TableFacts
from penstock.postgres.catalog.table_tree import Member, Tree

OLD_ROW = OldRow(("id", "tenant", "v", "added"), (("id",), ("id", "tenant")))
LAYOUT = ShapeLayout(
    "public.t",
    tuple(Column(name, "text") for name in OLD_ROW.columns),
    ("id",),
    OLD_ROW.columns,
    plugin="wal2json",
    where="v > '1'",
)
WHOLE = ("id", "tenant", "v", "added")
BEFORE = ("id", "tenant", "v")


@pytest.mark.parametrize(
    ("new", "old", "lacking"),
    [
        pytest.param(WHOLE, WHOLE, [], id="full"),
        pytest.param(("id", "v"), WHOLE, [], id="full: long values that didn't change"),
        pytest.param(BEFORE, BEFORE, [], id="full: before a column was added"),
        pytest.param((*BEFORE, "dropped"), (*BEFORE, "dropped"), [], id="full: before one was dropped"),
        pytest.param(WHOLE, ("id",), ["tenant", "v", "added"], id="default"),
        pytest.param(BEFORE, ("id", "tenant"), ["v"], id="an index"),
        pytest.param(("id",), ("id",), ["tenant", "v", "added"], id="default: all others are long"),
        pytest.param(WHOLE, (), list(WHOLE), id="nothing"),
        pytest.param((), WHOLE, [], id="delete: full"),
        pytest.param((), BEFORE, [], id="delete: full, before a column was added"),
        pytest.param((), ("id",), ["tenant", "v", "added"], id="delete: default"),
        pytest.param((), ("id", "tenant"), ["v", "added"], id="delete: an index"),
        pytest.param((), ("id", "v"), ["tenant", "added"], id="delete: an index that is gone"),
        pytest.param((), (), list(WHOLE), id="delete: nothing"),
    ],
)
def test_what_a_change_lacks(new: Sequence[str], old: Sequence[str], lacking: Sequence[str]) -> None:
    assert list(OLD_ROW.lacking(Cells("U" if new else "D", cells(new), cells(old)))) == lacking


def test_a_table_s_dropped_columns_need_not_be_there() -> None:
    columns = tuple(ColumnFacts(name, place, "text") for place, name in enumerate(("id", "v", "gone")))
    virtual = ColumnFacts("virtual", 9, "text", is_virtual=True)
    facts = TableFacts(
        Tree(Member(Relation("public", "t"), 1, 1, "")),
        (*columns[:2], virtual, columns[2]),
        (IndexFacts("t_pkey", ("id",), is_primary=True),),
        gone=("gone",),
    )
    assert OldRow.of(facts) == (("id", "v"), (("id",),))


@pytest.mark.parametrize("action", ["U", "D"])
def test_a_row_that_can_t_be_judged_is_refused(action: str) -> None:
    lacks = "^public.t at 0/10:0: the change lacks tenant, v, added of its old row"
    with pytest.raises(RowIncomplete, match=lacks):
        both_rows(batch(frame(action, WHOLE if action == "U" else (), ("id",))), LAYOUT, OLD_ROW)


def test_one_that_can_be_judged_has_both_rows() -> None:
    found = both_rows(batch(frame("U", WHOLE, WHOLE), frame("I", WHOLE, ())), LAYOUT, OLD_ROW)
    assert found["_penstock_old"].to_pylist()[0] == dict.fromkeys(WHOLE, "1")


def test_an_altered_table_is_found_first() -> None:
    with pytest.raises(LayoutChanged):
        both_rows(batch(frame("D", (), ("id", "renamed", "v", "added"))), LAYOUT, OLD_ROW)


def cells(names: Sequence[str]) -> list[Cell]:
    return [Cell(name, "text", msgspec.Raw(b'"1"')) for name in names]


def frame(action: str, new: Sequence[str], old: Sequence[str]) -> bytes:
    said: dict[str, object] = {"action": action, "schema": "public", "table": "t"}
    for member, names in (("columns", new), ("identity", old)):
        if names:
            said[member] = [{"name": name, "type": "text", "value": "1"} for name in names]
    return json.dumps(said, separators=(",", ":")).encode()


def batch(*frames: bytes) -> pa.RecordBatch:
    places = list(range(len(frames)))
    return pa.RecordBatch.from_pydict(
        {"tx_offset": [16] * len(frames), "op_offset": places, "payload": list(frames)}
    )

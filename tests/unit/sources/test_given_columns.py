"""Changes as rows of a schema that the user has given."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from penstock.decoding.rows import LayoutChanged
from penstock.kinesis.read.errors import StreamReadError
from penstock.model.relation import Relation
from penstock.sources.given_columns import GivenColumns
from penstock.sources.marked_rows import marked_schema
from penstock.sources.marked_source import MarkedStreamReader
from penstock.sources.penstock_source import PenstockSource

OWN = {
    "_penstock_tx_offset": pa.int64(),
    "_penstock_op_offset": pa.int64(),
    "_penstock_lsn": pa.string(),
    "_penstock_relation": pa.string(),
    "_penstock_action": pa.string(),
    "_penstock_absent": pa.list_(pa.string()),
}
KEY = {"_penstock_old_key": pa.struct({"id": pa.int32()})}
T = Relation("public", "t")
ID = ("id", "integer", 1)
OPTIONS = {"kinesis.streamName": "shop", "kinesis.region": "eu-west-1", "slot": "etl"}


def spark(columns: dict[str, pa.DataType]) -> StructType:
    return from_arrow_schema(pa.schema(columns))


def schema(**columns: pa.DataType) -> StructType:
    return spark({**OWN, "_penstock_old_key": pa.struct({"id": columns["id"]}), **columns})


def change(action: str, columns: Any = (), identity: Any = ()) -> bytes:
    found: dict[str, Any] = {"action": action, "schema": "public", "table": "t"}
    for member, cells in (("columns", columns), ("identity", identity)):
        found[member] = [{"name": name, "type": kind, "value": value} for name, kind, value in cells]
    return json.dumps(found, separators=(",", ":")).encode()


def rows(given: StructType, *changes: bytes) -> list[dict[str, Any]]:
    found = []
    reading = pickle.loads(pickle.dumps(GivenColumns(given)))
    for batch in reading.batches(T, [(10 + each, 0) for each in range(len(changes))], changes):
        assert batch.schema == to_arrow_schema(given, timezone="UTC")
        found += batch.to_pylist()
    return found


def test_a_column_that_a_change_lacks_is_null() -> None:
    """One that was dropped, one that was added, and one that no change has."""
    given = schema(
        id=pa.int32(),
        dropped=pa.string(),
        added=pa.date32(),
        never=pa.decimal128(12, 2),
        nor=pa.timestamp("us", "UTC"),
    )
    found = rows(
        given,
        change("I", [ID, ("dropped", "text", "x")]),
        change("U", [ID, ("added", "date", "2026-11-18")], [ID]),
        change("D", identity=[ID]),
        change("T"),
    )
    assert [each["_penstock_action"] for each in found] == ["insert", "update", "delete", "truncate"]
    assert [each["id"] for each in found] == [1, 1, 1, None]
    assert [each["dropped"] for each in found] == ["x", None, None, None]
    assert [str(each["added"]) for each in found] == ["None", "2026-11-18", "None", "None"]
    assert found[0]["_penstock_absent"] == ["added", "never", "nor"]
    assert found[1]["_penstock_absent"] == ["dropped", "never", "nor"]
    assert all(each["never"] is None and each["nor"] is None for each in found)


def test_a_column_that_became_wider_has_the_wider_type() -> None:
    given = schema(id=pa.int64(), amount=pa.decimal128(14, 2))
    found = rows(
        given,
        change("I", [ID, ("amount", "numeric(12,2)", 1.5)]),
        change("U", [("id", "integer", 3), ("amount", "numeric(14,2)", 2.5)], [ID]),
        change("I", [("amount", "numeric(14,2)", 7), ("id", "bigint", 2**40)]),
        change("I", [("id", "integer", 4), ("amount", "numeric(12,2)", 8)]),
    )
    assert [each["id"] for each in found] == [1, 1, 3, 2**40, 4]
    assert [each["amount"] and float(each["amount"]) for each in found] == [1.5, None, 2.5, 7, 8]
    assert found[2]["_penstock_old_key"] == {"id": 1}
    assert [each["_penstock_tx_offset"] for each in found] == [10, 11, 11, 12, 13]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (schema(id=pa.int32()), r"column note \(text\) is new"),
        (
            schema(id=pa.int32(), note=pa.int32()),
            r"column note is int in .schema\(…\), and a change has text \(string\)",
        ),
        (schema(id=pa.int16(), note=pa.string()), "column id is smallint in .schema"),
    ],
)
def test_what_a_schema_has_no_room_for_ends_the_query(given: StructType, sentence: str) -> None:
    with pytest.raises(LayoutChanged, match=sentence):
        rows(given, change("I", [ID, ("note", "text", "x")]))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"id": pa.int32()}, "it must begin with _penstock_tx_offset bigint, "),
        (OWN, "_penstock_old_key struct<the key's columns>"),
        ({**OWN, "id": pa.int32()}, "_penstock_old_key struct<the key's columns>"),
        ({**OWN, **KEY, "other": pa.int32()}, "id of _penstock_old_key is no column"),
        ({**OWN, **KEY, "id": pa.list_(pa.int32())}, r"column id is array<int>"),
    ],
)
def test_a_schema_that_can_not_be_is_refused(given: dict[str, pa.DataType], sentence: str) -> None:
    with pytest.raises(StreamReadError, match=sentence):
        GivenColumns(spark(given))


def test_spark_gives_the_reader_what_the_user_has_named() -> None:
    source = PenstockSource({**OPTIONS, "table": "public.t"})
    with pytest.raises(StreamReadError, match="must begin with"):
        source.streamReader(spark({"id": pa.int32()}))
    assert isinstance(source.streamReader(schema(id=pa.int32())), MarkedStreamReader)
    records = PenstockSource(OPTIONS)
    assert isinstance(records.streamReader(marked_schema(None, ())), MarkedStreamReader)
    with pytest.raises(StreamReadError, match=r"leave out \.schema"):
        records.streamReader(schema(id=pa.int32()))

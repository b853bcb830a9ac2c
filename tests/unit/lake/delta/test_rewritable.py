"""Which tables are given other types by writing every file anew."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.lake.delta.rewritable import is_rewritable, retyped

PROTOCOL = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": ["timestampNtz"],
    "writerFeatures": ["timestampNtz", "appendOnly", "invariants"],
}


def field(name: str, kind: Any, **metadata: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


def table(*fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    schema = json.dumps({"type": "struct", "fields": list(fields)})
    return {"id": "1", "schemaString": schema, "partitionColumns": [], "configuration": {"a": "b"}, **more}


PLAIN = (field("id", "integer"), field("d", "decimal(10,2)", comment="an amount"))


@pytest.mark.parametrize(
    ("features", "metadata", "can"),
    [
        ([], table(*PLAIN), True),
        (["changeDataFeed", "checkConstraints"], table(*PLAIN), True),
        (["typeWidening"], table(*PLAIN), False),
        (["columnMapping"], table(*PLAIN), False),
        (["yetToCome"], table(*PLAIN), False),
        ([], table(*PLAIN, partitionColumns=["id"]), False),
        ([], table(*PLAIN, field("g", "integer", **{"delta.generationExpression": "id + 1"})), False),
        ([], table(*PLAIN, field("e", "integer", CURRENT_DEFAULT="7")), False),
        ([], table(*PLAIN, field("s", {"type": "struct", "fields": [field("x", "date")]})), True),
        ([], table(*PLAIN, field("s", {"type": "struct", "fields": [field("x", "date", a=1)]})), False),
    ],
)
def test_what_is_rewritten(features: list[str], metadata: dict[str, Any], can: bool) -> None:
    protocol = {**PROTOCOL, "writerFeatures": ["timestampNtz", *features]}
    assert is_rewritable(protocol, metadata) is can


def test_features_of_readers_count_too() -> None:
    assert not is_rewritable({**PROTOCOL, "readerFeatures": ["deletionVectors"]}, table(*PLAIN))


def test_a_protocol_that_lists_no_features_may_mean_any() -> None:
    assert not is_rewritable({"minReaderVersion": 2, "minWriterVersion": 6}, table(*PLAIN))


def test_only_types_become_others() -> None:
    wider = (PLAIN[0], field("d", "decimal(12,2)", comment="an amount"))
    found = retyped(table(*PLAIN), {"d": "decimal(12,2)"})
    assert json.loads(found.pop("schemaString")) == json.loads(table(*wider)["schemaString"])
    assert found == {"id": "1", "partitionColumns": [], "configuration": {"a": "b"}}

"""Which Delta tables can get other types by writing every file anew, and what their metadata then is.

Only what is known through and through: a table as we make it, with a change feed, constraints and comments
that others may have added. Whatever else a table can have (partitions, generated columns, defaults, column
mapping, row tracking, deletion vectors, features that are yet to come) has rules of its own for files and
metadata: such a table is replaced by a snapshot.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

_FEATURES: Final = frozenset(
    {"appendOnly", "changeDataFeed", "checkConstraints", "invariants", "timestampNtz"}
)
_NOTES: Final = frozenset({"comment"})
"""What a column's own metadata may hold."""


def is_rewritable(protocol: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    """Whether a table with these actions in its log is of that kind."""
    features = {*protocol.get("readerFeatures", ()), *protocol.get("writerFeatures", ())}
    # Without a list of features, a version stands for all of those that came up to it.
    return (
        bool(features)
        and features <= _FEATURES
        and not metadata.get("partitionColumns")
        and all(_NOTES.issuperset(notes) for notes in _notes(json.loads(metadata["schemaString"])))
    )


def retyped(metadata: Mapping[str, Any], types: Mapping[str, str]) -> dict[str, Any]:
    """The same metadata, with these types for columns of these names."""
    schema = json.loads(metadata["schemaString"])
    for field in schema["fields"]:
        field["type"] = types.get(field["name"], field["type"])
    return {**metadata, "schemaString": json.dumps(schema, separators=(",", ":"))}


def _notes(schema: Any) -> Iterator[Mapping[str, Any]]:
    """The metadata of all fields, however deep."""
    if isinstance(schema, list):
        for each in schema:
            yield from _notes(each)
    elif isinstance(schema, dict):
        yield schema.get("metadata", {})
        for name, value in schema.items():
            if name != "metadata":
                yield from _notes(value)

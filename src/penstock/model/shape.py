"""A shape: a filter over one table, and what makes it the same shape tomorrow."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Literal

from penstock.model.relation import Relation

DEFAULT_FLUSH_INTERVAL_MS: Final = 1000

NumericNan = Literal["stop", "null"]


@dataclass(frozen=True, slots=True)
class Shape:
    """One `[[shape]]` of a shapes file."""

    name: str
    table: Relation
    where: str | None = None
    """A Spark SQL condition over the row's columns; None: every row."""
    columns: tuple[str, ...] | None = None
    """As the catalog spells them; None: every column."""
    flush_interval_ms: int = DEFAULT_FLUSH_INTERVAL_MS
    numeric_nan: NumericNan = "stop"
    """What a NaN in a `numeric(p,s)` column does, which no decimal of the lake holds."""


def definition_hash(shape: Shape) -> str:
    """What decides which rows and columns the shape's table holds, as 64 hexadecimal digits.

    A change of it means a new snapshot. So the pace is not in it, nor is the order of the columns: a table's
    columns go by name.
    """
    columns = None if shape.columns is None else sorted(shape.columns)
    definition = ["penstock shape 1", *shape.table, shape.where, columns]
    if shape.numeric_nan != "stop":
        definition.append(f"numeric_nan {shape.numeric_nan}")
    return sha256(json.dumps(definition, separators=(",", ":")).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class ShapesFile:
    """A file that was read and found good."""

    path: str
    """As it was given to us."""
    storage: str
    """An absolute directory, an `s3a://` URL without a slash at its end, or `kinesis://stream`."""
    shapes: tuple[Shape, ...]
    registry: str | None = None
    """Where the registry is, if the storage can't hold it: a directory or an `s3a://` URL."""

    @property
    def registry_at(self) -> str:
        """Where the registry is."""
        return self.storage if self.registry is None else self.registry

    def location(self, shape: Shape) -> str:
        """Where the shape's table is."""
        return f"{self.storage}/{shape.name}"


def shape_line(file: str, place: str, found: str, fix: str) -> str:
    """What is wrong in a file, and what to do, on one line; `place` may be empty."""
    return ": ".join(part for part in (file, place, found) if part) + f". Fix: {fix}"

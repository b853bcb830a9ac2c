"""A shape: a filter over one table, and what makes it the same shape tomorrow."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Literal, NamedTuple, Self

DEFAULT_FLUSH_INTERVAL_MS: Final = 1000

NumericNan = Literal["stop", "null"]

_PLAIN: Final = r"[A-Za-z_\u0080-\U0010FFFF][A-Za-z0-9_$\u0080-\U0010FFFF]*"
_IDENTIFIER: Final = rf'{_PLAIN}|"(?:[^"]|"")+"'
_TABLE_NAME: Final = re.compile(rf"({_IDENTIFIER})\.({_IDENTIFIER})")
_NEEDS_NO_QUOTES: Final = re.compile(r"[a-z_][a-z0-9_$]*")
_ASCII_LOWER: Final = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")
_LONGEST_IDENTIFIER_BYTES: Final = 63


class TableName(NamedTuple):
    """A table by schema and name, as the catalog and wal2json spell them."""

    schema: str
    table: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `schema.table` as Postgres does: what isn't quoted is folded to lower case.

        ValueError for anything else. Names with control characters or of more than 63 bytes are refused
        too: Postgres would cut the latter short, and find another table.
        """
        parts = _TABLE_NAME.fullmatch(text)
        if parts is None:
            raise ValueError("not schema.table")
        schema, table = _identifier(parts[1]), _identifier(parts[2])
        for name in (schema, table):
            if not name.isprintable():
                raise ValueError("a name with control characters")
            if len(name.encode()) > _LONGEST_IDENTIFIER_BYTES:
                raise ValueError(f"a name of more than {_LONGEST_IDENTIFIER_BYTES} bytes")
        return cls(schema, table)

    def __str__(self) -> str:
        """For people, and for `parse`; quoted only where that is needed to read it back."""
        return ".".join(map(_quoted_if_needed, self))


@dataclass(frozen=True, slots=True)
class Shape:
    """One `[[shape]]` of a shapes file."""

    name: str
    table: TableName
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


def _identifier(word: str) -> str:
    if word.startswith('"'):
        return word[1:-1].replace('""', '"')
    return word.translate(_ASCII_LOWER)


def _quoted_if_needed(name: str) -> str:
    return name if _NEEDS_NO_QUOTES.fullmatch(name) else '"' + name.replace('"', '""') + '"'

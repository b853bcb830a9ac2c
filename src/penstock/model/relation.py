"""Relation: the one name of a table."""

from __future__ import annotations

import re
from typing import Final, NamedTuple, Self

_PLAIN: Final = r"[A-Za-z_\u0080-\U0010FFFF][A-Za-z0-9_$\u0080-\U0010FFFF]*"
_IDENTIFIER: Final = rf'{_PLAIN}|"(?:[^"]|"")+"'
_RELATION: Final = re.compile(rf"({_IDENTIFIER})\.({_IDENTIFIER})")
_NEEDS_NO_QUOTES: Final = re.compile(r"[a-z_][a-z0-9_$]*")
_ASCII_LOWER: Final = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")
_LONGEST_IDENTIFIER_BYTES: Final = 63


class Relation(NamedTuple):
    """A table by schema and name, as the catalog and the stream spell them."""

    schema: str
    table: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `schema.table` as Postgres does: what isn't quoted is folded to lower case.

        ValueError for anything else. Names with control characters or of more than 63 bytes are refused
        too: Postgres would cut the latter short, and find another table.
        """
        parts = _RELATION.fullmatch(text)
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


def _identifier(word: str) -> str:
    if word.startswith('"'):
        return word[1:-1].replace('""', '"')
    return word.translate(_ASCII_LOWER)


def _quoted_if_needed(name: str) -> str:
    return name if _NEEDS_NO_QUOTES.fullmatch(name) else '"' + name.replace('"', '""') + '"'

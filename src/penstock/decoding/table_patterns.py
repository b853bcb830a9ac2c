"""The table patterns of wal2json's `add-tables` and `filter-tables`, read as wal2json reads them."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from penstock.decoding.decoder import RecordContent
from penstock.model.relation import Relation

# A backslash takes the next character with it, also a separator.
_ENTRIES: Final = re.compile(r"(?:\\.|[^,\\])+")
_PARTS: Final = re.compile(r"((?:\\.|[^.\\])*)\.(.*)", re.DOTALL)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


class TablePattern(NamedTuple):
    """`schema.table`, where either part may be `*`; anything else in it is literal."""

    text: str
    schema: str | None
    """None: any."""
    table: str | None

    def matches(self, schema: str, table: str) -> bool:
        """Whether the pattern means this table."""
        return self.schema in (None, schema) and self.table in (None, table)


def parse_patterns(setting: str | None) -> list[TablePattern]:
    """The patterns of a setting. An entry that wal2json would refuse is left out: the server names it."""
    entries = [entry.strip() for entry in _ENTRIES.findall(setting or "")]
    split = [(entry, _PARTS.fullmatch(entry)) for entry in entries]
    return [TablePattern(entry, _name(parts[1]), _name(parts[2])) for entry, parts in split if parts]


def is_told(relation: Relation, content: RecordContent) -> bool:
    """Whether records tell of this table."""
    added, filtered = parse_patterns(content.add_tables), parse_patterns(content.filter_tables)
    is_added = content.add_tables is None or any(pattern.matches(*relation) for pattern in added)
    return is_added and not any(pattern.matches(*relation) for pattern in filtered)


def _name(part: str) -> str | None:
    return None if part == "*" else _ESCAPED.sub(r"\1", part)

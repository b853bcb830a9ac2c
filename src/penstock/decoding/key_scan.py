"""The key of an ordinary change, found without reading the rest of it."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from penstock.model.relation import Relation

_ACTION: Final = slice(0, len(b'{"action":"I"'))
_SCHEMA: Final = b'"schema":"'
_FIRST_LIST: Final = b":[{"
_PK: Final = b'"pk":['
_IDENTITY: Final = b'"identity":['
_VALUE: Final = b'"value":'
_LONGEST_PREFIX: Final = 200
"""With a number behind it, the key stays below Kinesis' limit."""

_encode_json = msgspec.json.Encoder().encode


class _Template(NamedTuple):
    """What all changes of a table have in common, as bytes."""

    relation: Relation
    prefix: str
    marker: bytes
    """The key column up to its value."""
    identity: bytes | None
    """The start of an identity that is exactly the key; None for an insert."""
    tail: bytes
    """The frame's end, from `pk` on."""


class Wal2JsonKeyScanner:
    """Remembers how a table's frames look, and takes the key from where it stands in them.

    Reading a whole payload as JSON costs most of what capture does for a change. For a key of one column
    with a whole number in it, four searches in the bytes do: wal2json escapes quotes inside strings, so a
    quoted name that is searched for can't be found inside a value.

    1. `learn` takes a template from a payload whose key is known from reading it.
    2. `scan` gives a key only where everything that the key depends on is as in the template: action, table,
       key column and its type, primary key, and an identity that holds just the key. Otherwise None, and the
       payload has to be read.
    3. `forget` drops all templates; due whenever a table's key columns are learnt again.
    """

    def __init__(self) -> None:
        self._templates: dict[tuple[bytes, bytes], _Template] = {}
        """By action, and by what stands from the schema's name to the first list."""
        self.relation: Relation | None = None
        """See KeyScanner."""

    def scan(self, payload: bytes) -> str | None:
        """The key, if the payload looks as expected."""
        start = payload.find(_SCHEMA)
        list_at = payload.find(_FIRST_LIST, start)
        template = self._templates.get((payload[_ACTION], payload[start:list_at]))
        if template is None or not payload.endswith(template.tail):
            self.relation = None
            return None
        value = _number_behind(payload, template.marker, list_at)
        if value is None:
            self.relation = None
            return None
        if template.identity is not None:
            # The identity stands last before `pk`: nothing but the key's value may be between them.
            old = payload[payload.rfind(template.identity) + len(template.identity) : -len(template.tail)]
            if not old.endswith(b"}],") or not old[:-3].isdigit():
                self.relation = None
                return None
        self.relation = template.relation
        return template.prefix + value.decode()

    def learn(self, payload: bytes, relation: Relation, *, prefix: str, name: str) -> None:
        """Take a template from a change of a table whose key is this one column."""
        start = payload.find(_SCHEMA)
        list_at = payload.find(_FIRST_LIST, start)
        pk_at = payload.rfind(_PK)
        place = (payload[_ACTION], payload[start:list_at])
        known = self._templates.get(place)
        if known is not None and known.tail == payload[pk_at:]:
            return  # the table looks as before; it was this change that is out of the ordinary
        column_at = payload.find(b'{"name":' + _encode_json(name) + b",", list_at)
        value_at = payload.find(_VALUE, column_at)
        if min(start, list_at, column_at, value_at, pk_at) < 0 or len(prefix) > _LONGEST_PREFIX:
            return
        marker = payload[column_at : value_at + len(_VALUE)]
        identity = _IDENTITY + marker if _IDENTITY in payload else None
        if b"}" not in marker:
            self._templates[place] = _Template(relation, prefix, marker, identity, payload[pk_at:])

    def forget(self) -> None:
        """Start again: a table's key may be another one now."""
        self._templates.clear()


def _number_behind(payload: bytes, marker: bytes, start: int) -> bytes | None:
    found = payload.find(marker, start)
    if found < 0:
        return None
    value_at = found + len(marker)
    value = payload[value_at : payload.find(b"}", value_at)]
    return value if value.isdigit() else None

"""The key of an ordinary change, found without reading the rest of it."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.model.relation import Relation

_INSERT: Final = b'{"action":"I"'
_UPDATE: Final = b'{"action":"U"'
_ACTION: Final = slice(0, len(_INSERT))
_SCHEMA: Final = b'"schema":"'
_FIRST_LIST: Final = b":[{"
_LIST_BYTES: Final = len(_FIRST_LIST)
_PK: Final = b'"pk":['
_IDENTITY: Final = b'"identity":['
_VALUE: Final = b'"value":'
_LONGEST_PREFIX: Final = 200
"""With a number behind it, the key stays below Kinesis' limit."""

_encode_json = msgspec.json.Encoder().encode


class _Template(msgspec.Struct, gc=False, frozen=True, eq=False):
    """What all changes of a table have in common, as bytes."""

    action: bytes
    place: bytes
    """From the schema's name into the first list."""
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
        """By action and place."""
        self._last: _Template | None = None
        """The one that fitted last."""
        self.found: _Template | None = None
        """See KeyScanner."""

    @property
    def varies(self) -> bool:
        """See KeyScanner. An update leaves unchanged TOAST columns out; an insert names all columns."""
        found = self.found
        return found is None or (found.action == _UPDATE and (_INSERT, found.place) not in self._templates)

    def scan(self, payload: bytes) -> str | None:
        """The key, if the payload looks as expected."""
        # Written out: this is the path of every change, and mostly the table is that of the change before.
        self.found = None
        start = payload.find(_SCHEMA)
        template = self._last
        if (
            template is None
            or not payload.startswith(template.action)
            or not payload.startswith(template.place, start)
        ):
            list_at = payload.find(_FIRST_LIST, start)
            template = self._templates.get((payload[_ACTION], payload[start : list_at + _LIST_BYTES]))
            if template is None:
                return None
            self._last = template
        marker_at = payload.find(template.marker, start)
        if marker_at < 0 or not payload.endswith(template.tail):
            return None
        value_at = marker_at + len(template.marker)
        value = payload[value_at : payload.find(b"}", value_at)]
        if not value.isdigit():
            return None
        if template.identity is not None:
            # The identity stands last before `pk`: nothing but the key's value may be between them.
            old = payload[payload.rfind(template.identity) + len(template.identity) : -len(template.tail)]
            if not old.endswith(b"}],") or not old[:-3].isdigit():
                return None
        self.found = template
        return template.prefix + value.decode()

    def learn(self, payload: bytes, relation: Relation, *, prefix: str, name: str) -> None:
        """Take a template from a change of a table whose key is this one column."""
        start = payload.find(_SCHEMA)
        list_at = payload.find(_FIRST_LIST, start)
        pk_at = payload.rfind(_PK)
        action, place = payload[_ACTION], payload[start : list_at + _LIST_BYTES]
        known = self._templates.get((action, place))
        if known is not None and known.tail == payload[pk_at:]:
            return  # the table looks as before; it was this change that is out of the ordinary
        column_at = payload.find(b'{"name":' + _encode_json(name) + b",", list_at)
        value_at = payload.find(_VALUE, column_at)
        if min(start, list_at, column_at, value_at, pk_at) < 0 or len(prefix) > _LONGEST_PREFIX:
            return
        marker = payload[column_at : value_at + len(_VALUE)]
        identity = _IDENTITY + marker if _IDENTITY in payload else None
        if b"}" not in marker:
            self._last = None
            self._templates[action, place] = _Template(
                action, place, relation, prefix, marker, identity, payload[pk_at:]
            )

    def forget(self) -> None:
        """Start again: a table's key may be another one now."""
        self._templates.clear()
        self._last = None

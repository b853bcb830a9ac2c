"""Partition keys: one row, one key, whatever happens to it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple, Self
from urllib.parse import quote

import msgspec

from penstock.decoding.decoder import Decoder, RowChange, Unreadable, Value
from penstock.model.key_indexes import KeyIndexes
from penstock.model.lsn import format_lsn
from penstock.model.relation import Relation
from penstock.settings.kinesis import PartitionKeySettings

MAX_KEY_CHARACTERS: Final = 256

_decode_text = msgspec.json.Decoder(str).decode


class Fallback(StrEnum):
    """What to use where a frame has no readable key."""

    LSN = "lsn"
    TABLE = "table"
    STATIC = "static"


class KeyedRelation(NamedTuple):
    """A table as a change names it, with the `pk` member's text: a changed key is another relation."""

    relation: Relation
    pk: bytes
    identity: tuple[str, ...] = ()
    """The names in the frame's `identity`; an insert has none."""


class KeyColumns(NamedTuple):
    """The columns that make a relation's key, in key order; empty if it has none."""

    pk: bytes
    """The `pk` text for which this was learnt."""
    identity: tuple[str, ...]
    """The names in the `identity` for which this was learnt."""
    prefix: str
    names: tuple[str, ...]
    primary: tuple[str, ...]
    """The primary key's columns, as the frame names them."""

    @classmethod
    def of(cls, keyed: KeyedRelation, listed: tuple[str, ...], indexes: KeyIndexes) -> KeyColumns:
        """The key of a relation with this primary key, with what the catalog knows of it now."""
        prefix = f"{_encode(keyed.relation.schema)}.{_encode(keyed.relation.table)}/"
        is_as_now = set(listed) == set(indexes.primary)
        primary = tuple(indexes.primary) if is_as_now else listed
        names = choose_columns(primary, keyed.identity, tuple(indexes.identity), is_as_now=is_as_now)
        return cls(keyed.pk, keyed.identity, prefix, names, primary)

    def fits(self, identity: Sequence[Value]) -> bool:
        """Whether a frame with this `identity` may go by these columns.

        An identity without the key shows that the table has, or had, another REPLICA IDENTITY. For one and
        the same identity the catalog is asked only once: it may not know better.
        """
        for name in self.names:
            for value in identity:
                if value.name == name:
                    break
            else:
                return self.identity == _names(identity)
        return bool(self.names) or self.identity == _names(identity)


def choose_columns(
    primary: tuple[str, ...], identity: tuple[str, ...], index: tuple[str, ...], *, is_as_now: bool
) -> tuple[str, ...]:
    """The columns by which a frame's row is told apart.

    A row's insert, updates and deletes must choose alike, and a backlog may be older than the catalog. A
    delete has nothing but its identity; an insert has everything but an identity. So:

    1. An identity that holds the frame's own primary key: the primary key. That is every table with the
       default identity, with FULL, and with an index that includes the key.
    2. An identity without it is that of REPLICA IDENTITY USING INDEX: these columns, in the order of the
       index if the catalog has it still (`index`), else as the frame lists them.
    3. Without a primary key only the catalog can tell an index from FULL, where all columns are the identity.
    4. An insert goes as the last update or delete of its table did. If there was none, as the catalog says
       now, provided that the table's primary key is the frame's still (`is_as_now`).
    """
    if not identity:
        by_index = is_as_now and index and not (primary and set(primary) <= set(index))
        return index if by_index else primary
    if primary and set(primary) <= set(identity):
        return primary
    if index and set(index) <= set(identity):
        return index
    return identity if primary else ()


class UnknownRelation(LookupError):
    """The catalog has not been asked for this relation yet."""

    def __init__(self, relation: KeyedRelation) -> None:
        super().__init__(relation)
        self.relation = relation


class PartitionKeys:
    """Gives every payload its partition key.

    In `primary_key` mode a relation that was not seen before raises UnknownRelation; the caller asks the
    catalog, calls `learn`, and tries again.
    """

    def __init__(
        self, decoder: Decoder, *, by_primary_key: bool, fallback: Fallback, static: str = ""
    ) -> None:
        self._decoder = decoder
        self._by_primary_key = by_primary_key
        self._fallback = fallback
        self._static = static
        self._known: dict[Relation, KeyColumns] = {}
        self.scanner = decoder.scanner()
        """Finds most keys, and tells whose they are."""

    @classmethod
    def of(cls, decoder: Decoder, settings: PartitionKeySettings) -> Self:
        """As the settings say."""
        return cls(
            decoder,
            by_primary_key=settings.mode == "primary_key",
            fallback=Fallback(settings.fallback),
            static=settings.static_value or "",
        )

    def learn(self, keyed: KeyedRelation, indexes: KeyIndexes) -> None:
        """Remember which columns are a relation's key, by its frame and by what the catalog says."""
        self.scanner.forget()
        listed = self._decoder.key_columns(keyed.pk)
        self._known[keyed.relation] = KeyColumns.of(keyed, listed, indexes)

    def key(self, payload: bytes, wal_start: int) -> str:
        """The key of a row change; for a payload that can't be read, the fallback."""
        if not self._by_primary_key and self._fallback is not Fallback.TABLE:
            return self.fallback(wal_start)
        key = self.scanner.scan(payload)
        return key if key is not None else self._read(payload, wal_start)

    def _read(self, payload: bytes, wal_start: int) -> str:
        try:
            change = self._decoder.row(payload)
        except Unreadable:
            return self.fallback(wal_start)
        # A truncate names no row and no key: it must not pass for a table whose key is gone.
        has_row = bool(change.columns or change.identity)
        relation = Relation(change.schema, change.table)
        key = row_key(change, relation, self._known) if self._by_primary_key and has_row else None
        if key is None:
            return self.fallback(wal_start, change)
        key_columns = self._known[relation]
        if len(key_columns.names) == 1 and key[len(key_columns.prefix) :].isdigit():
            self.scanner.learn(payload, relation, prefix=key_columns.prefix, name=key_columns.names[0])
        return key

    def fallback(self, wal_start: int, change: RowChange | None = None) -> str:
        """The key of a frame that has none of its own. Where there is no table, `table` means the LSN."""
        if self._fallback is Fallback.STATIC:
            return self._static
        if self._fallback is Fallback.TABLE and change is not None and change.table:
            return _bounded(f"{_encode(change.schema)}.{_encode(change.table)}")
        return format_lsn(wal_start)


def row_key(change: RowChange, relation: Relation, known: Mapping[Relation, KeyColumns]) -> str | None:
    """`schema.table/v1,v2` for the row after the change; None if the frame doesn't hold the whole key.

    The new row has precedence over the old identity, so that a key change goes under the new key.
    """
    key_columns = known.get(relation)
    pk, identity = bytes(change.pk), change.identity
    if key_columns is None or key_columns.pk != pk or (identity and not key_columns.fits(identity)):
        raise UnknownRelation(KeyedRelation(relation, pk, _names(identity)))
    values = _values(change, key_columns.names)
    if values is None and not identity:
        # An insert after the index was dropped that updates and deletes had gone by.
        values = _values(change, key_columns.primary)
    return None if values is None else _bounded(key_columns.prefix + values)


def _values(change: RowChange, names: Sequence[str]) -> str | None:
    if not names:
        return None
    parts = []
    for name in names:
        # A delete has only the identity, and an unchanged TOAST column is absent from the new row.
        value = _find(change.columns, name) or _find(change.identity, name)
        if value is None:
            return None
        parts.append(_text(value))
    return ",".join(parts)


def _bounded(key: str) -> str:
    return key if len(key) <= MAX_KEY_CHARACTERS else hashlib.sha256(key.encode()).hexdigest()


def _names(values: Sequence[Value]) -> tuple[str, ...]:
    return tuple([value.name for value in values])


def _find(values: Sequence[Value], name: str) -> bytes | None:
    for value in values:
        if value.name == name:
            return bytes(value.value)
    return None


def _text(data: bytes) -> str:
    if data.isdigit():
        return data.decode()
    if not data.startswith(b'"'):
        return _encode(data.decode(errors="surrogateescape"))
    try:
        return _encode(_decode_text(data))
    except UnicodeDecodeError:
        # A SQL_ASCII database may hold any bytes; each still gets its own percent code.
        return _encode(json.loads(data.decode(errors="surrogateescape"), strict=False))


def _encode(text: str) -> str:
    return text if text.isascii() and text.isalnum() else quote(text, safe="_", errors="surrogateescape")

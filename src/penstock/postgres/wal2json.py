"""wal2json, format version 2: what a payload says, without touching the payload."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.lsn import parse_lsn

_PREFIX: Final = b'{"action":"'
_ACTION_AT: Final = len(_PREFIX)
_NO_PK: Final = msgspec.Raw(b"")

BEGIN: Final = ord("B")
COMMIT: Final = ord("C")
MESSAGE: Final = ord("M")
NOT_CHANGES: Final = frozenset({BEGIN, COMMIT, MESSAGE})


class Unreadable(ValueError):
    """A payload that isn't the JSON that wal2json should write."""


class Value(msgspec.Struct, gc=False, frozen=True):
    """A column of a row: its name, and its value as JSON text (exact, whatever the type)."""

    name: str
    value: msgspec.Raw


class RowChange(msgspec.Struct, gc=False, frozen=True):
    """The parts of a change that tell which row it is about."""

    schema: str = ""
    table: str = ""
    columns: list[Value] = []
    """The new row (insert, update); unchanged TOAST columns are absent."""
    identity: list[Value] = []
    """The old row's replica identity (update, delete)."""
    pk: msgspec.Raw = _NO_PK
    """The primary key's columns, as the JSON text that wal2json wrote."""


class Boundary(msgspec.Struct, gc=False, frozen=True):
    """A begin or a commit: both carry the commit LSN and the end LSN, unless `include-lsn` is off."""

    lsn: str | None = None
    nextlsn: str | None = None

    @property
    def commit_lsn(self) -> int | None:
        """Where the commit record starts."""
        return None if self.lsn is None else parse_lsn(self.lsn)

    @property
    def end_lsn(self) -> int | None:
        """Where the commit record ends: what to confirm once the transaction is done."""
        return None if self.nextlsn is None else parse_lsn(self.nextlsn)


class Summary(msgspec.Struct, gc=False, frozen=True):
    """What may be said of a change in a log or a pointer: no row values."""

    action: str | None = None
    schema: str | None = None
    table: str | None = None
    lsn: str | None = None


class _Named(msgspec.Struct, gc=False):
    name: str


_decode_change = msgspec.json.Decoder(RowChange).decode
_decode_boundary = msgspec.json.Decoder(Boundary).decode
_decode_summary = msgspec.json.Decoder(Summary).decode
_decode_names = msgspec.json.Decoder(list[_Named]).decode


def action_of(payload: bytes | memoryview) -> int | None:
    """The action's letter as a byte value, read from its fixed place; None if it isn't there."""
    if payload[:_ACTION_AT] != _PREFIX or len(payload) <= _ACTION_AT:
        return None
    return payload[_ACTION_AT]


def decode_change(payload: bytes) -> RowChange:
    """Read a row change; Unreadable if it isn't one."""
    try:
        return _decode_change(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unreadable("the payload is not the JSON that wal2json format 2 promises") from error


def decode_boundary(payload: bytes) -> Boundary:
    """Read a begin or commit frame; Unreadable if it isn't one."""
    try:
        return _decode_boundary(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unreadable("a begin or commit that is not the JSON of wal2json format 2") from error


def summarise(payload: bytes) -> Summary:
    """Name the change without its values; empty where the payload can't be read."""
    try:
        return _decode_summary(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Summary()


def primary_key_columns(pk: bytes) -> tuple[str, ...]:
    """The names in a change's `pk` member, in the order in which wal2json lists them; none if unreadable."""
    try:
        return tuple(column.name for column in _decode_names(pk))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ()


def replication_options(
    *,
    include_timestamp: bool,
    include_lsn: bool,
    include_pk: bool,
    include_xids: bool = False,
    include_types: bool = True,
    numeric_as_string: bool = False,
    add_tables: str | None = None,
    filter_tables: str | None = None,
) -> dict[str, str]:
    """The plugin options for START_REPLICATION.

    `include-transaction` is always on: positions come from begin and commit frames.
    """
    options = {
        "format-version": "2",
        "include-transaction": "true",
        "include-timestamp": _flag(include_timestamp),
        "include-lsn": _flag(include_lsn),
        "include-pk": _flag(include_pk),
        "include-xids": _flag(include_xids),
        "include-types": _flag(include_types),
    }
    if numeric_as_string:
        # Servers before wal2json 2.6 refuse the option even when it is off, so it is named only when on.
        options["numeric-data-types-as-string"] = "true"
    if add_tables:
        options["add-tables"] = add_tables
    if filter_tables:
        options["filter-tables"] = filter_tables
    return options


def _flag(value: bool) -> str:
    return "true" if value else "false"

"""wal2json, format version 2: what a payload says, without touching the payload."""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import datetime
from typing import Final

import msgspec

from penstock.decoding.decoder import (
    Cell,
    Cells,
    KeyColumn,
    NamedType,
    RecordContent,
    RowChange,
    Summary,
    TransactionEnds,
    Unreadable,
)
from penstock.decoding.key_scan import Wal2JsonKeyScanner
from penstock.model.change import Action
from penstock.model.lsn import parse_lsn
from penstock.model.relation import Relation

_ACTIONS: Final = {b'{"action":"%b' % action.value.encode(): action for action in Action}
"""By how a payload begins."""
_ACTION_END: Final = len(next(iter(_ACTIONS)))
# What stands before it can't hold a quote of its own, and an unreadable type name comes behind it.
_NAMES: Final = re.compile(
    rb'"schema":("[^"\\]*(?:\\.[^"\\]*)*"),"table":("[^"\\]*(?:\\.[^"\\]*)*")', re.DOTALL
)
_NO_IDENTITY: Final = re.compile(
    r'no tuple identifier for (?:UPDATE|DELETE) in table "(.+)"\."(.+)"', re.DOTALL
)
_MOST_RELATIONS: Final = 20_000
_TENTH: Final = len("2026-11-17 11:47:02.1")
_SPECIAL: Final = re.compile(r"([\\,.*' ])")


class _Boundary(msgspec.Struct, gc=False, frozen=True):
    """A begin or a commit: both carry the commit LSN and the end LSN, unless `include-lsn` is off;
    and when it was committed, unless `include-timestamp` is off.
    """

    lsn: str | None = None
    nextlsn: str | None = None
    timestamp: str | None = None


_decode_change = msgspec.json.Decoder(RowChange).decode
_decode_boundary = msgspec.json.Decoder(_Boundary).decode
_decode_summary = msgspec.json.Decoder(Summary).decode
_decode_names = msgspec.json.Decoder(list[KeyColumn]).decode
_decode_cells = msgspec.json.Decoder(Cells).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_row = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode
_encode = msgspec.json.Encoder().encode
_ROWS: Final = ("columns", "identity", "pk")


class Wal2Json:
    """The Decoder of wal2json's format version 2."""

    plugin: Final = "wal2json"
    refused_option_fix: Final = (
        "WAL2JSON_NUMERIC_AS_STRING needs wal2json 2.6; WAL2JSON_ADD_TABLES and WAL2JSON_FILTER_TABLES take"
        " schema.table"
    )
    strings_since: Final = "2.6"
    # By itself, without a function around it: this is the path of every change.
    payload: Final = staticmethod(bytes)
    """Every frame is a payload."""

    def __init__(self) -> None:
        self._relations: dict[bytes, Relation] = {}
        self._committed = ("", 0.0)
        """A tenth of a second, as text, and a commit time in it, in Unix seconds."""
        self._transaction: tuple[bytes | None, TransactionEnds] = (None, TransactionEnds(None, None))
        """The boundary read last, behind its action, and what it says: a commit mostly repeats its begin."""

    def action(self, payload: bytes) -> Action | None:
        """Read from its fixed place; None if it isn't there."""
        return _ACTIONS.get(payload[:_ACTION_END])

    def transaction(self, payload: bytes) -> TransactionEnds:
        """Read a begin or a commit; Unreadable if it isn't one."""
        told, ends = self._transaction
        if payload[_ACTION_END:] == told:
            return ends
        try:
            boundary = _decode_boundary(payload)
            ends = TransactionEnds(
                _lsn(boundary.lsn), _lsn(boundary.nextlsn), self._unix_seconds(boundary.timestamp)
            )
        except (msgspec.DecodeError, ValueError) as error:
            raise Unreadable("a begin or commit that is not the JSON of wal2json format 2") from error
        self._transaction = (payload[_ACTION_END:], ends)
        return ends

    def _unix_seconds(self, text: str | None) -> float | None:
        if text is None:
            return None
        # Reading a time costs as much as all else in a boundary: it is done once for each tenth of a second.
        tenth = text[:_TENTH]
        if tenth != self._committed[0]:
            self._committed = (tenth, datetime.fromisoformat(text).timestamp())
        return self._committed[1]

    def row(self, payload: bytes) -> RowChange:
        """Read a change of a row; Unreadable if it isn't one."""
        try:
            return _decode_change(payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Unreadable("the payload is not the JSON that wal2json format 2 promises") from error

    def cells(self, payload: bytes) -> Cells:
        """Read all of a change; Unreadable if it isn't one."""
        try:
            return _decode_cells(payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Unreadable("the payload is not the JSON that wal2json format 2 promises") from error

    def stream_record(self, payload: bytes, action: Action, kept: Collection[str] | None) -> bytes:
        """The payload itself where nothing is to be left out or told otherwise."""
        try:
            members, was = _decode_members(payload), self.action(payload)
            return payload if action is was and kept is None else _retold(members, was, action, kept)
        except (msgspec.DecodeError, UnicodeDecodeError, LookupError) as error:
            raise Unreadable("the payload is not the JSON that wal2json format 2 promises") from error

    def printed(self, cell: Cell) -> str | None:
        """What Postgres prints of a value, from what wal2json made of that."""
        raw = bytes(cell.value)
        match raw[:1]:
            case b"n":
                return None
            case b"t" | b"f":
                return raw[:1].decode()
            case b'"':
                text = _decode_text(raw)
                return f"\\x{text}" if cell.type == "bytea" else text
            case _:
                return raw.decode()

    def relation(self, payload: bytes) -> Relation | None:
        """The table of a change, however unreadable its rest is; None if not even that can be told."""
        names = _NAMES.search(payload)
        if names is None:
            return None
        relation = self._relations.get(names[0])
        if relation is None:
            if len(self._relations) >= _MOST_RELATIONS:
                self._relations.clear()
            try:
                relation = self._relations[names[0]] = Relation(*map(_decode_text, names.groups()))
            except (msgspec.DecodeError, UnicodeDecodeError):
                # Payloads are in the server's encoding, which need not be UTF-8.
                return None
        return relation

    def columns(self, payload: bytes) -> list[NamedType] | None:
        """The columns of the new row, or else of the old one's identity; None if it can't be read."""
        try:
            cells = self.cells(payload)
        except Unreadable:
            return None
        return [NamedType(cell.name, cell.type) for cell in cells.columns or cells.identity]

    def key_columns(self, pk: bytes) -> tuple[str, ...]:
        """The names in a change's `pk` member, in wal2json's order; none if unreadable."""
        try:
            return tuple(column.name for column in _decode_names(pk))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return ()

    def summary(self, payload: bytes) -> Summary:
        """Name the change without its values; its action and table at least, where the rest is unreadable."""
        try:
            return _decode_summary(payload)
        except (msgspec.DecodeError, UnicodeDecodeError):
            relation, action = self.relation(payload), self.action(payload)
            if relation is None:
                return Summary()
            return Summary(None if action is None else action.value, *relation)

    def frame_type(self, printed: str) -> str:
        """What a frame says of a type that `format_type` prints like this.

        wal2json takes a name that begins with a quote for one that is quoted as a whole, and writes it into
        the JSON as it is. So the quotes are lost; where more stands inside or behind them, the JSON is
        broken.
        """
        if self.is_unreadable(printed) or not printed.startswith('"') or printed.endswith("]"):
            return printed
        return printed[1:-1]

    def is_unreadable(self, printed: str) -> bool:
        """Whether a frame with a column of this type is no JSON."""
        if not printed.startswith('"') or printed.endswith("]"):
            return False
        return not printed.endswith('"') or any(each in '"\\' for each in printed[1:-1])

    def record_options(self, content: RecordContent) -> dict[str, str]:
        """Plugin options with which changes tell this."""
        return replication_options(
            include_timestamp=content.timestamp,
            include_lsn=content.lsn,
            include_pk=content.pk,
            include_xids=content.xid,
            numeric_as_string=content.numeric_as_string,
            add_tables=content.add_tables,
            filter_tables=content.filter_tables,
        )

    def row_options(self) -> list[dict[str, str]]:
        """wal2json before 2.6 doesn't know the first ones, and writes NaN and the infinities as null."""
        return [
            replication_options(
                include_timestamp=False,
                include_lsn=True,
                include_pk=True,
                numeric_as_string=numeric_as_string,
            )
            for numeric_as_string in (True, False)
        ]

    def table_options(self, relations: Collection[Relation]) -> dict[str, str]:
        """Plugin options with which only changes of these tables are sent."""
        return replication_options(
            include_timestamp=False,
            include_lsn=False,
            include_pk=False,
            add_tables=",".join(f"{_literal(each.schema)}.{_literal(each.table)}" for each in relations),
        )

    def scanner(self) -> Wal2JsonKeyScanner:
        """A scanner that has learnt nothing yet."""
        return Wal2JsonKeyScanner()

    def left_out(self, notice: str) -> Relation | None:
        """The table of a change that wal2json has dropped because it has no replica identity."""
        match = _NO_IDENTITY.search(notice)
        return None if match is None else Relation(*match.groups())


def _retold(
    members: dict[str, msgspec.Raw], was: Action | None, action: Action, kept: Collection[str] | None
) -> bytes:
    """All other members, and the text of every value, stay as they are."""
    rows = {name: _decode_row(members[name]) for name in _ROWS if name in members}
    if action is not was:
        members["action"] = msgspec.Raw(_encode(action.value))
        if action is Action.INSERT:
            there = {_name(cell) for cell in rows["columns"]}
            rows["columns"] += [cell for cell in rows.pop("identity") if _name(cell) not in there]
            del members["identity"]
        else:
            del rows["columns"], members["columns"]
    for name, row in rows.items():
        told = row if kept is None else [cell for cell in row if _name(cell) in kept]
        members[name] = msgspec.Raw(_encode(told))
    return _encode(members)


def _name(cell: dict[str, msgspec.Raw]) -> str:
    return _decode_text(cell["name"])


def _literal(name: str) -> str:
    """A name as wal2json's lists of tables take it."""
    return _SPECIAL.sub(r"\\\1", name)


def _lsn(text: str | None) -> int | None:
    return None if text is None else parse_lsn(text)


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

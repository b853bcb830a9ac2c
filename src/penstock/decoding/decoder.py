"""Decoder: the one door to what an output plugin writes. Whoever wants to know what a payload says asks here.

A frame is rendered once, to the payload that travels; everything else is read from that on demand. A second
output plugin needs a second Decoder, and nothing else: the walk over frames, partition keys, the shapes'
collector and the rows of the lake are the same for all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from penstock.model.change import Action
from penstock.model.relation import Relation


class Unreadable(ValueError):
    """A payload that isn't what its output plugin should write."""


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
    pk: msgspec.Raw = msgspec.Raw(b"")
    """The primary key's columns, in the plugin's own words: they differ where the key does."""


class Cell(msgspec.Struct, gc=False, frozen=True):
    """A column of a row with its type, and its value as JSON text."""

    name: str
    type: str
    """As `format_type` prints it, or as the plugin spells it (`frame_type`)."""
    value: msgspec.Raw


class KeyColumn(msgspec.Struct, gc=False, frozen=True):
    """A column of the primary key."""

    name: str


class Cells(msgspec.Struct, gc=False, frozen=True):
    """All that a change says."""

    action: str
    """An Action's value."""
    columns: list[Cell] = []
    """The new row (insert, update); unchanged TOAST columns are absent."""
    identity: list[Cell] = []
    """The old row's replica identity (update, delete)."""
    pk: list[KeyColumn] = []


def whole_row(cells: Cells) -> list[Cell]:
    """The new row, with what it doesn't carry from the old one's identity."""
    there = {cell.name for cell in cells.columns}
    return cells.columns + [cell for cell in cells.identity if cell.name not in there]


class Summary(msgspec.Struct, gc=False, frozen=True):
    """What may be said of a change in a log or a pointer: no row values."""

    action: str | None = None
    schema: str | None = None
    table: str | None = None
    lsn: str | None = None


class NamedType(NamedTuple):
    """A column as a change names it."""

    name: str
    type: str


class RecordContent(NamedTuple):
    """What the records of a capture are to tell, and of which tables."""

    timestamp: bool = True
    lsn: bool = True
    pk: bool = True
    """The primary key's columns."""
    xid: bool = False
    numeric_as_string: bool = False
    """Numbers in quotes, so that NaN and the infinities have a text."""
    add_tables: str | None = None
    """Patterns: only these tables."""
    filter_tables: str | None = None
    """Patterns: all but these tables."""


class TransactionEnds(NamedTuple):
    """What a begin or a commit says of its transaction; None where the plugin was told to leave it out."""

    commit_lsn: int | None
    end_lsn: int | None
    committed_at: float | None = None
    """In Unix seconds, on the server's clock; a tenth of a second is exact enough."""


class Layout(Protocol):
    """What the changes of a table that have one action are recognized by."""

    @property
    def relation(self) -> Relation:
        """The table."""


class KeyScanner(Protocol):
    """A short cut to the partition key of an ordinary change, for plugins whose payloads allow one."""

    @property
    def found(self) -> Layout | None:
        """What the payload looks like that was scanned last; None if its key was not found.

        A truncate has no key.
        """

    @property
    def varies(self) -> bool:
        """Whether payloads like that one may have columns that no payload has shown that was read whole."""

    def scan(self, payload: bytes) -> str | None:
        """The key, where everything that it depends on is as it was when it was learnt; else None."""

    def learn(self, payload: bytes, relation: Relation, *, prefix: str, name: str) -> None:
        """The key of this change of a table is the prefix and the value of this column."""

    def forget(self) -> None:
        """What was learnt may be wrong now."""


class Decoder(Protocol):
    """Reads the payloads of one output plugin.

    What a stream says beside its changes (of relations, of types) is kept by `payload` alone: all others read
    what they are given, in any process, and keep nothing that would tell one change from another.
    """

    @property
    def plugin(self) -> str:
        """The output plugin's name."""

    @property
    def refused_option_fix(self) -> str:
        """Which settings to look at when a server refuses one of the plugin's options."""

    @property
    def strings_since(self) -> str:
        """The first version that can write numbers as strings, so that NaN and the infinities have a text."""

    def payload(self, raw: memoryview | bytes, /) -> bytes | None:
        """What the server sent, as it travels from here on; None if it says nothing by itself.

        Asked once for each frame, in the order of the stream; and again, in the same place, for a change that
        the walk's visitor didn't take at first.
        """

    def action(self, payload: bytes) -> Action | None:
        """What a payload says, by a look at its beginning; None if that can't be read."""

    def transaction(self, payload: bytes) -> TransactionEnds:
        """Read a begin or a commit; Unreadable if it isn't one."""

    def row(self, payload: bytes) -> RowChange:
        """Read a change of a row; Unreadable if it isn't one."""

    def cells(self, payload: bytes) -> Cells:
        """Read all of a change; Unreadable if it isn't one."""

    def stream_record(self, payload: bytes, action: Action, kept: Collection[str] | None) -> bytes:
        """A change as a stream has it, told as this action, with these columns (None: all).

        That is what wal2json writes, whichever the plugin. An update may be told as the insert of its whole
        row, or as the delete of its old one. Unreadable if it isn't a change.
        """

    def printed(self, cell: Cell) -> str | None:
        """What Postgres prints of a value; None for null."""

    def relation(self, payload: bytes) -> Relation | None:
        """The table of a change, however unreadable its rest is; None if not even that can be told."""

    def columns(self, payload: bytes) -> Sequence[NamedType] | None:
        """The columns of the new row, or else of the old one's identity; None if it can't be read."""

    def key_columns(self, pk: bytes) -> tuple[str, ...]:
        """The names in a RowChange's `pk`, as the plugin lists them; none if unreadable."""

    def summary(self, payload: bytes) -> Summary:
        """Name the change without its values; empty where not even `relation` can be told."""

    def frame_type(self, printed: str) -> str:
        """How a Cell names the type that `format_type` prints like this."""

    def is_unreadable(self, printed: str) -> bool:
        """Whether no change of a table with a column of this type can be read."""

    def record_options(self, content: RecordContent) -> Mapping[str, str]:
        """Plugin options with which changes tell this."""

    def row_options(self) -> Sequence[Mapping[str, str]]:
        """Plugin options with which changes tell whole rows, the best first.

        A server that doesn't know one of them refuses; the last ones are understood by all.
        """

    def table_options(self, relations: Collection[Relation]) -> Mapping[str, str]:
        """Plugin options with which only changes of these tables are sent, whole rows."""

    def scanner(self) -> KeyScanner:
        """A scanner that has learnt nothing yet."""

    def left_out(self, notice: str) -> Relation | None:
        """The table of a change that the plugin has left out, if that is what a server's notice says."""

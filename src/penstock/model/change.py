"""Change: what happened to a row, wherever it comes from and wherever it goes."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import msgspec

from penstock.model.log_offset import LogOffset
from penstock.model.relation import Relation


class Action(Enum):
    """What a message of the stream says."""

    INSERT = "I"
    UPDATE = "U"
    DELETE = "D"
    TRUNCATE = "T"
    BEGIN = "B"
    COMMIT = "C"
    MESSAGE = "M"
    """Somebody's `pg_logical_emit_message`: nothing of a row."""


class Change(msgspec.Struct, gc=False, eq=False):
    """A change of the open transaction, with its position. What it says of the row is the decoder's to read.

    `gc=False`: it holds only bytes and numbers, so it can be in no cycle.
    """

    action: Action | None
    """None if it can't be read; such a change is carried all the same."""
    payload: bytes
    """As the decoder rendered it."""
    wal_start: int
    """Where it stands in the WAL. Goes backwards between concurrent transactions."""
    commit_lsn: int
    op_offset: int

    @property
    def offset(self) -> LogOffset:
        """Its position."""
        return LogOffset(self.commit_lsn, self.op_offset)


class Truncate(NamedTuple):
    """The truncate of a table, and its position."""

    relation: Relation
    commit_lsn: int
    op_offset: int


def table_told(
    relation: Relation | None, action: Action | None, commit_lsn: int, op_offset: int
) -> Relation | Truncate | None:
    """What is to be told of a change's table: its name, or where it was truncated."""
    if relation is None or action is not Action.TRUNCATE:
        return relation
    return Truncate(relation, commit_lsn, op_offset)


class Boundary(msgspec.Struct, gc=False, frozen=True):
    """The begin or the commit of a transaction."""

    action: Action
    payload: bytes
    wal_start: int
    commit_lsn: int
    end_lsn: int | None
    """Where the commit record ends: what may be confirmed once it is done. A begin may not know."""
    committed_at: float = 0.0
    """When it was committed, in Unix seconds by the server's clock; when it was sent, if nothing tells."""

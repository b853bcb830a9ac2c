"""One change on its way from the socket to a destination."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.kinesis.marked.prefix import marked
from penstock.model.change import Truncate
from penstock.model.log_offset import LogOffset
from penstock.model.relation import Relation

NO_OBJECT: Final = "not_a_json_object"
"""The fault of an event whose payload can't take the prefix of a marked stream."""


class ChangeEvent(msgspec.Struct, gc=False, eq=False):
    """A frame with its position, its key and its place in the AckTracker.

    `gc=False`: an event holds only strings, bytes, numbers and a table's name, so it can be in no cycle, and
    a backlog of them costs the garbage collector nothing.
    """

    ack_id: int
    payload: bytes
    """As the decoder rendered it, or the pointer to that."""
    partition_key: str
    record_size_bytes: int
    """What Kinesis counts: the record plus its partition key, in bytes."""
    commit_lsn: int
    op_offset: int
    received_at: float
    """Monotonic seconds at which the reader took it from the socket."""
    fault: str | None = None
    """Why it can't be delivered as it is; None for an ordinary event."""
    is_pointer: bool = False
    """Whether the payload is the pointer to a quarantined one."""
    table: Relation | Truncate | None = None
    """The table of a change, or its truncate, where manifests name them; None for others."""
    prefix: bytes = b""
    """What a marked stream's record has before the payload's first member.

    It is put there when a request is built: the payload is copied then in any case, and what waits until
    then is smaller.
    """

    @property
    def data(self) -> bytes:
        """The record."""
        return marked(self.payload, self.prefix) if self.prefix else self.payload

    def measure(self) -> int:
        """What Kinesis counts of it as it is now."""
        return len(self.data) + len(self.partition_key.encode())

    @property
    def relation(self) -> Relation | None:
        """The table of a change, where manifests name it."""
        return self.table.relation if isinstance(self.table, Truncate) else self.table

    @property
    def offset(self) -> LogOffset:
        """The position of this change."""
        return LogOffset(self.commit_lsn, self.op_offset)

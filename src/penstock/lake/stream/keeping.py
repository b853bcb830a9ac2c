"""What becomes of a change that is too large for a record of the stream. Runs where Spark's tasks do.

As in capture: with a quarantine it is stored there, durably, and a pointer takes its place in the stream.
Without one the flush fails with a sentence, before any of its records is sent.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.decoding.decoder import Decoder
from penstock.kinesis.marked.pointer import pointer_record
from penstock.kinesis.marked.prefix import PREFIX_BYTES
from penstock.kinesis.write.quarantine import (
    TOO_LARGE,
    QuarantineError,
    QuarantineStore,
    object_name,
)
from penstock.kinesis.write.quarantine_places import open_quarantine
from penstock.lake.errors import StorageFailed
from penstock.model.key_indexes import KeyIndexes
from penstock.model.log_offset import LogOffset


class Keeping(NamedTuple):
    """How large a record may be, and where larger ones are kept."""

    max_record_bytes: int = 1 << 20
    """Key and prefix included."""
    quarantine_url: str | None = None
    """None: such a change holds its shape."""


class LargeRecords:
    """The changes of one shape, looked at by one task."""

    def __init__(
        self, keeping: Keeping, *, shape: str, region: str, decoder: Decoder, indexes: KeyIndexes
    ) -> None:
        self._keeping = keeping
        self._shape = shape
        self._region = region
        self._decoder = decoder
        self._indexes = indexes
        self._store: QuarantineStore | None = None

    def fitting(self, record: bytes, key: str, offset: LogOffset) -> bytes:
        """The record, or the pointer in its place. StorageFailed if it has none, or it can't be stored."""
        # The prefix has the payload's first brace.
        size_bytes = PREFIX_BYTES + len(record) - 1 + len(key.encode())
        if size_bytes <= self._keeping.max_record_bytes:
            return record
        if self._keeping.quarantine_url is None:
            raise StorageFailed(self._sentence(record, offset, size_bytes))
        return self._pointer(self._keeping.quarantine_url, record, offset)

    def _pointer(self, quarantine_url: str, record: bytes, offset: LogOffset) -> bytes:
        try:
            if self._store is None:
                self._store = open_quarantine(quarantine_url, self._region)
            url = self._store.store(object_name(self._shape, offset, record), record)
        except QuarantineError as error:
            raise StorageFailed(f"{error}. Fix: see that executors can write to QUARANTINE_URL") from error
        return pointer_record(record, self._decoder.summary(record), url=url, reason=TOO_LARGE, offset=offset)

    def _sentence(self, record: bytes, offset: LogOffset, size_bytes: int) -> str:
        key = ", ".join(self._indexes.primary or self._indexes.identity) or "none"
        return (
            f"shape {self._shape}: a change of {self._decoder.relation(record)} (key: {key}) at {offset} is a"
            f" record of {size_bytes:,} bytes, and {self._keeping.max_record_bytes:,} are allowed. Fix: leave"
            " long columns out of the shape's columns; or raise the stream's record size and"
            " KINESIS_MAX_RECORD_BYTES; or set UNDELIVERABLE_POLICY=quarantine and QUARANTINE_URL"
        )

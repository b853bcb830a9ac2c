"""A marked stream as it was read: its records, its manifests, and the transactions that they tell of."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from penstock.demo.stream_reader import PREFIX_BYTES, StreamReader
from penstock.local.kinesis import StoredRecord


class MarkedStream:
    """What a stream of one slot holds at one moment; `marks` if manifests stand in another stream."""

    def __init__(
        self, records: Sequence[StoredRecord], slot: str, marks: Sequence[StoredRecord] | None = None
    ) -> None:
        key = f"penstock/{slot}"
        self.slot = slot
        self.records = [each for each in records if each.partition_key != key]
        self.manifests = [
            each.data for each in (records if marks is None else marks) if each.partition_key == key
        ]
        self._shards: dict[str, dict[int, bytes]] = {}
        for record in records:
            self._shards.setdefault(record.shard_id, {})[int(record.sequence_number)] = record.data

    @property
    def system(self) -> str:
        """The server's system id, as the first manifest has it."""
        return str(json.loads(self.manifests[0])["system"])

    def spoken(self) -> list[dict[str, Any]]:
        """The manifests, read."""
        return [json.loads(data) for data in self.manifests]

    def payloads(self) -> Iterator[tuple[StoredRecord, bytes]]:
        """Each record, with what it was before it got its prefix."""
        for record in self.records:
            yield record, b"{" + record.data[PREFIX_BYTES:]

    def reader(self, applied: str | None = None) -> StreamReader:
        """A reader of it."""
        return StreamReader(self.system, self.slot, self._read, applied)

    def transactions(self) -> Iterator[list[bytes]]:
        """Everything, by whole transactions; StreamBroken if that can't be."""
        reader = self.reader()
        yield from reader.transactions(self.manifests)
        reader.end()

    def _read(self, shard: str, first: int, last: int) -> Iterable[tuple[int, bytes]]:
        held = self._shards[shard]
        return [(number, held[number]) for number in range(first, last + 1) if number in held]

"""A marked stream, read by the plain reader."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from penstock.demo.stream_reader import StreamReader
from penstock.local.kinesis import LocalKinesis


class MarkedStream:
    """What a stream and its manifests hold at one moment."""

    def __init__(
        self, kinesis: LocalKinesis, stream: str, slot: str, marks_stream: str | None = None
    ) -> None:
        self._shards: dict[str, dict[int, bytes]] = {}
        key = f"penstock/{slot}"
        everything = kinesis.read_all(stream)
        self.records = [each for each in everything if each.partition_key != key]
        for record in everything:
            self._shards.setdefault(record.shard_id, {})[int(record.sequence_number)] = record.data
        marks = everything if marks_stream is None else kinesis.read_all(marks_stream)
        self.manifests = [each.data for each in marks if each.partition_key == key]
        self._slot = slot

    @property
    def system(self) -> str:
        """The server's system id, as the first manifest has it."""
        return str(self.spoken()[0]["system"])

    def spoken(self) -> list[dict[str, Any]]:
        """The manifests, read."""
        return [json.loads(data) for data in self.manifests]

    def read(self, shard: str, first: int, last: int) -> Iterable[tuple[int, bytes]]:
        """Records of a shard."""
        held = self._shards[shard]
        return [(number, held[number]) for number in range(first, last + 1) if number in held]

    def reader(self, applied: str | None = None) -> StreamReader:
        """A reader of it."""
        return StreamReader(self.system, self._slot, self.read, applied)

    def transactions(self) -> Iterator[list[bytes]]:
        """Everything, by whole transactions."""
        reader = self.reader()
        yield from reader.transactions(self.manifests)
        reader.end()

    def lose(self, shard: str, number: int) -> None:
        """As if retention had taken it."""
        del self._shards[shard][number]

"""How far a stream was read: a position a shard, as JSON that Spark keeps in its checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from penstock.kinesis.read.errors import StreamReadError
from penstock.kinesis.read.shards import ShardInfo

INITIAL: Final[dict[str, Any]] = {"penstock_kinesis": "initial"}
"""Stands for the place where a new query begins.

Spark keeps only where batches end. So this is a constant, and the first batch's end says what it stood for.
"""
_VERSION: Final = 1


class ShardPosition(NamedTuple):
    """How far one shard was read.

    Up to the record `after`. As long as none was read: from `since` on, a time of arrival, or else from the
    shard's own beginning.
    """

    after: int | None = None
    since: datetime | None = None
    is_finished: bool = False
    """The shard is closed, and was read to its end."""
    is_tip: bool = False
    """Whether nothing stood behind it when it was looked at."""
    first: int | None = None
    """The first record of the batch that ends here; None: the batch has none of this shard."""

    def is_where(self, other: ShardPosition) -> bool:
        """Whether both name one place."""
        return self[:3] == other[:3]


class ReadRange(NamedTuple):
    """Records of one shard, both ends included."""

    shard_id: str
    first: int
    last: int | None
    """None: to the end of the shard, which is closed."""


class StreamOffset(NamedTuple):
    """How far every shard was read."""

    stream: str
    looked_at: datetime
    """When it was found that nothing stood behind the positions that say so."""
    shards: Mapping[str, ShardPosition]

    def ranges(self) -> list[ReadRange]:
        """What the batch that ends here holds."""
        return [
            ReadRange(shard_id, position.first, None if position.is_finished else position.after)
            for shard_id, position in sorted(self.shards.items())
            if position.first is not None
        ]

    def to_json(self) -> dict[str, Any]:
        """As Spark keeps it."""
        shards = {shard_id: _position_json(position) for shard_id, position in sorted(self.shards.items())}
        return {
            "version": _VERSION,
            "stream": self.stream,
            "lookedAt": self.looked_at.astimezone(UTC).isoformat(),
            "shards": shards,
        }

    @classmethod
    def parse(cls, found: Mapping[str, Any], stream: str) -> StreamOffset | None:
        """Read it; None: it is INITIAL. StreamReadError if it isn't an offset of this stream."""
        if found == INITIAL:
            return None
        if found.get("version") != _VERSION:
            raise StreamReadError(f"the checkpoint's offset is none of this source's: {str(found)[:200]}")
        if found["stream"] != stream:
            raise StreamReadError(
                f"the checkpoint is of the stream {found['stream']}, the query reads {stream}: a stream "
                "needs a checkpoint of its own"
            )
        shards = {shard_id: _position(each) for shard_id, each in found["shards"].items()}
        return cls(stream, datetime.fromisoformat(found["lookedAt"]), shards)


class Starting(NamedTuple):
    """Where a query that has no offset yet begins."""

    kind: str
    """LATEST, TRIM_HORIZON or AT_TIMESTAMP."""
    timestamp: datetime | None = None

    def offset(self, stream: str, shards: Iterable[ShardInfo], now: datetime) -> StreamOffset:
        """The positions that this means for the shards that are there now."""
        positions = {shard.shard_id: self._position(shard, now) for shard in shards}
        return StreamOffset(stream, now, positions)

    def _position(self, shard: ShardInfo, now: datetime) -> ShardPosition:
        if self.kind == "TRIM_HORIZON":
            return ShardPosition(is_tip=True)
        if self.kind == "LATEST" and shard.is_closed:
            return ShardPosition(is_finished=True)
        return ShardPosition(since=self.timestamp or now, is_tip=True)


def _position_json(position: ShardPosition) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if position.after is not None:
        # As text: they have up to 56 digits.
        found["after"] = str(position.after)
    elif position.since is not None:
        found["since"] = position.since.astimezone(UTC).isoformat()
    if position.first is not None:
        found["first"] = str(position.first)
    if position.is_finished:
        found["finished"] = True
    if position.is_tip:
        found["tip"] = True
    return found


def _position(found: Mapping[str, Any]) -> ShardPosition:
    return ShardPosition(
        int(found["after"]) if "after" in found else None,
        datetime.fromisoformat(found["since"]) if "since" in found else None,
        found.get("finished", False),
        found.get("tip", False),
        int(found["first"]) if "first" in found else None,
    )

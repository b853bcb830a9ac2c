"""Look: how far the next batch of a stream goes. Pure; watch.py is the one that asks Kinesis."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from penstock.kinesis.read.shards import ShardInfo, parents_first
from penstock.kinesis.read.stream_offset import ShardPosition, StreamOffset

_KEPT: Final = timedelta(hours=23)
"""Kinesis keeps a record for 24 hours at least; an hour is for clocks that differ."""
_RENEWED: Final = timedelta(hours=1)
"""An offset that is this old is replaced at rest, so that a restart finds a recent one."""


class Reached(NamedTuple):
    """How far a shard can be read from a position on."""

    first: int | None = None
    """The first record; None: there is none."""
    last: int | None = None
    """The last record that the batch takes. None, though there is a first one: the last of a closed shard."""
    is_finished: bool = False
    is_tip: bool = False
    is_proven: bool = False
    """Whether the last record that was read before is still there."""
    behind_ms: int = 0


class Task(NamedTuple):
    """A shard to look at."""

    shard: ShardInfo
    position: ShardPosition
    needs_proof: bool
    """Whether the last record that was read has to be seen again."""


class Look:
    """One look at all shards.

    1. A shard is looked at when the shards that it was made from are finished, be it in this look. So a
       batch may end a shard and begin its children; whoever reads it keeps that order.
    2. Once GetRecords has shown a record, no other comes before it in its shard. So a range between two
       records that were seen holds the same records whenever it is read.
    3. Nothing was lost before the first new record if the last one that was read is still there: records
       expire in order. Or if nothing stood behind it at the time of the offset, and that is not longer ago
       than Kinesis keeps records. Else, and for a shard that is gone unread, a sentence is added to
       `losses`; the end is then the one of a reader that goes on with what is left.
    4. With a ceiling (an offset that was found before), nothing behind it is taken, and shards that it
       doesn't know are left out.
    """

    def __init__(
        self,
        start: StreamOffset,
        shards: Iterable[ShardInfo],
        now: datetime,
        ceiling: StreamOffset | None = None,
    ) -> None:
        self._start = start
        self._ceiling = ceiling
        self._now = now if ceiling is None else ceiling.looked_at
        self._shards = {shard.shard_id: shard for shard in parents_first(shards)}
        self._ends = {
            shard_id: position._replace(first=None)
            for shard_id, position in start.shards.items()
            if position.is_finished and shard_id in self._shards
        }
        self.losses: list[str] = []
        self.behind_ms: dict[str, int] = {}
        self._find_gone()

    @property
    def unfinished(self) -> int:
        """How many shards may have something to read."""
        return len(self._shards) - sum(position.is_finished for position in self._ends.values())

    def ready(self) -> list[Task]:
        """The shards that can be looked at now; empty: the look is over."""
        return [
            Task(shard, self._position(shard.shard_id), needs_proof=not self._is_vouched(shard))
            for shard in self._shards.values()
            if shard.shard_id not in self._ends
            and (self._ceiling is None or shard.shard_id in self._ceiling.shards)
            and all(self._is_done(parent) for parent in shard.parents)
        ]

    def take(self, task: Task, reached: Reached) -> None:
        """Take what was found in a shard that was ready."""
        shard_id, position = task.shard.shard_id, task.position
        self.behind_ms[shard_id] = reached.behind_ms
        is_lost = task.needs_proof and not reached.is_proven
        if is_lost:
            self.losses.append(_doubt(shard_id, position, reached, self._start.looked_at))
        if self._ceiling is not None:
            reached = _below(reached, self._ceiling.shards[shard_id])
        if reached.first is not None:
            end = ShardPosition(after=reached.last, first=reached.first)
        elif is_lost:
            end = ShardPosition(since=position.since)
        else:
            end = position._replace(first=None)
        self._ends[shard_id] = end._replace(is_finished=reached.is_finished, is_tip=reached.is_tip)

    def end(self) -> StreamOffset:
        """Where the batch ends; the start itself if there is nothing new."""
        shards = {
            shard_id: self._ends.get(shard_id) or self._start.shards[shard_id]._replace(first=None)
            for shard_id in self._shards
            if shard_id in self._ends or shard_id in self._start.shards
        }
        is_news = self.losses or any(
            shard_id in self._start.shards and not position.is_where(self._start.shards[shard_id])
            for shard_id, position in shards.items()
        )
        is_news = is_news or any(position.first is not None for position in shards.values())
        if not is_news and self._now - self._start.looked_at < _RENEWED:
            return self._start
        return StreamOffset(self._start.stream, self._now, shards)

    def _find_gone(self) -> None:
        for shard_id, position in self._start.shards.items():
            if not position.is_finished and shard_id not in self._shards:
                self.losses.append(
                    f"shard {shard_id} is no longer in the stream, and was read {_place(position)}: what "
                    "came behind that expired unread"
                )
        for shard in self._shards.values():
            if shard.shard_id in self._start.shards:
                continue
            for parent in shard.parents:
                if parent not in self._shards and parent not in self._start.shards:
                    self.losses.append(
                        f"shard {parent}, from which {shard.shard_id} was made, is no longer in the stream: "
                        "it expired unread"
                    )

    def _position(self, shard_id: str) -> ShardPosition:
        return self._start.shards.get(shard_id, ShardPosition())

    def _is_done(self, shard_id: str) -> bool:
        if shard_id not in self._shards:
            return True
        return shard_id in self._ends and self._ends[shard_id].is_finished

    def _is_vouched(self, shard: ShardInfo) -> bool:
        """Whether nothing behind the position can have expired."""
        is_recent = self._now - self._start.looked_at < _KEPT
        if shard.shard_id in self._start.shards:
            return is_recent and self._start.shards[shard.shard_id].is_tip
        # Its records are younger than all that its parents had, and these were read only now.
        return is_recent or not all(self._position(parent).is_finished for parent in shard.parents)


def _below(reached: Reached, ceiling: ShardPosition) -> Reached:
    """The part of it that the ceiling has."""
    if ceiling.is_finished:
        return reached
    if reached.first is None or ceiling.after is None or reached.first > ceiling.after:
        return Reached(is_tip=True)
    if reached.last is None or reached.last >= ceiling.after:
        return Reached(reached.first, ceiling.after, is_tip=True)
    return reached


def _place(position: ShardPosition) -> str:
    if position.after is not None:
        return f"up to {position.after}"
    return "not at all" if position.since is None else f"not at all (from {position.since.isoformat()} on)"


def _doubt(shard_id: str, position: ShardPosition, reached: Reached, looked_at: datetime) -> str:
    left = "nothing is left" if reached.first is None else f"the oldest that is left is {reached.first}"
    if position.after is None:
        return (
            f"shard {shard_id} was read {_place(position)}, and last looked at on {looked_at.isoformat()}: "
            f"what came since then may have expired unread; {left}"
        )
    return (
        f"shard {shard_id} was read up to {position.after}, which is no longer in the stream: what came "
        f"behind it may have expired unread; {left}"
    )

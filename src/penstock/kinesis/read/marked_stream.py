"""MarkedStream: a marked stream as one reader of all its tables sees it. Blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from itertools import islice
from typing import Final, NamedTuple

from penstock.kinesis.read.client import StreamClient
from penstock.kinesis.read.client_pool import CLIENTS
from penstock.kinesis.read.errors import StreamReadError
from penstock.kinesis.read.manifest_ages import LOOK_BACK, Needed, first_needed, newest
from penstock.kinesis.read.manifest_log import Arrived, ManifestLog, Place
from penstock.kinesis.read.shards import ShardInfo
from penstock.model.stream_position import StreamPosition

AT_ONCE: Final = 1_000
"""So many manifests `more` gives at most."""


class StreamAddress(NamedTuple):
    """Where a marked stream is, and whose changes are read from it. Holds no credentials."""

    stream: str
    marks_stream: str
    slot: str
    """The slot of the capture that writes it."""
    region: str
    endpoint_url: str | None = None

    def open(self, stream: str | None = None) -> StreamClient:
        """A client of the stream, or of that of the manifests."""
        return StreamClient(stream=stream or self.stream, region=self.region, endpoint_url=self.endpoint_url)

    def lend(self) -> AbstractContextManager[StreamClient]:
        """A client of the stream, for a task that is one of many in this process."""
        return CLIENTS.lend(self.stream, self.region, self.endpoint_url)

    def unmarked(self) -> StreamReadError:
        """There are no manifests."""
        return StreamReadError(
            f"{self.marks_stream} has no manifests of the slot {self.slot}. Fix: let penstock capture write"
            " it with KINESIS_MARKED_STREAM=true; name its REPLICATION_SLOT, and its KINESIS_MARKS_STREAM if"
            f" there is one: kinesis://{self.stream}?slot=…&marks=…"
        )


class _Start:
    """Do the first manifests that are read follow each other? Pure."""

    def __init__(self, begins: str) -> None:
        self._begins = begins
        self._left = AT_ONCE

    def shows_gap(self, arrived: Sequence[Arrived]) -> bool:
        """Whether one of these begins beyond what those before it reach. Later ones are not asked about."""
        if self._left <= 0:
            return False
        reached = self._begins
        for found in sorted(arrived, key=lambda each: each.manifest.since):
            if found.manifest.since > reached:
                return True
            reached = max(reached, found.manifest.resolved)
        self._begins = reached
        self._left -= len(arrived)
        return False


class MarkedStream:
    """Its manifests, in the order in which they stand, and its shards.

    `begin` finds where to read from, then each `more` gives what is new, in pieces of bounded size.
    """

    def __init__(self, address: StreamAddress) -> None:
        self._address = address
        self._client = address.open()
        self._marks = address.open(address.marks_stream)
        self._log = ManifestLog(self._marks, address.slot)
        self._reading: Iterator[Arrived] = iter(())
        self._last: Place | None = None
        self._further: list[timedelta | None] = []
        """How much further back it may be read, the next at the end; None: from the beginning."""
        self._start = _Start("")

    def begin(self, position: StreamPosition | None) -> str:
        """Read from a manifest on that begins at or below this; returns where a chain begins.

        That is the position itself, also if no manifest reaches down to it: what is missing shows as a gap.
        Without one it is the beginning of a recent manifest. StreamReadError if there are none.
        """
        self._further = [None, *reversed(LOOK_BACK)]
        first = None
        while self._further:
            first = self._begin_further()
            if first is not None and (position is None or first.manifest.since <= str(position)):
                break
        if first is None:
            raise self._address.unmarked()
        begins = first.manifest.since if position is None else str(position)
        self._start = _Start(begins)
        return begins

    def _begin_further(self) -> Arrived | None:
        """Read from the next time further back on; the first manifest of it."""
        back = self._further.pop()
        reading = self._log.arrivals(None) if back is None else self._log.arrivals_within(back)
        first = next(reading, None)
        self._reading = iter(()) if first is None else _with_first(first, reading)
        return first

    def first_needed(self, position: StreamPosition) -> Needed:
        """What a reader at this position needs; StreamReadError if there are no manifests.

        See `manifest_ages.first_needed`. `more` goes on as before.
        """
        found = first_needed(self._log, position)
        if found is None:
            raise self._address.unmarked()
        return found

    def newest(self, back: timedelta) -> Arrived | None:
        """See `manifest_ages.newest`."""
        return newest(self._log, back)

    @property
    def now(self) -> datetime:
        """See ManifestLog."""
        return self._log.now

    def more(self) -> list[Arrived]:
        """The next manifests; fewer than AT_ONCE if there are no more at the moment.

        Those of a time that was looked back may begin with one that was carried out late, and those that it
        belongs before stand further back. So if the first ones don't follow each other, it is read once more,
        from further back on.
        """
        found = self._next()
        if self._further and self._start.shows_gap(found):
            self._begin_further()
            self._further = []
            found = list(islice(self._reading, AT_ONCE))
        if found:
            self._last = found[-1].place
        return found

    def _next(self) -> list[Arrived]:
        found = list(islice(self._reading, AT_ONCE))
        if not found:
            self._reading = self._log.arrivals(self._last) if self._last is not None else iter(())
            found = list(islice(self._reading, AT_ONCE))
        return found

    def shards(self) -> dict[str, ShardInfo]:
        """The stream's shards that retention still has."""
        return {shard.shard_id: shard for shard in self._client.shards()}

    def retention(self) -> timedelta:
        """For how long records and manifests are kept: one is of no use without the other."""
        kept = self._client.retention()
        if self._address.marks_stream == self._address.stream:
            return kept
        return min(kept, self._marks.retention())

    def close(self) -> None:
        """Close idle connections."""
        self._client.close()
        self._marks.close()


def _with_first(first: Arrived, rest: Iterator[Arrived]) -> Iterator[Arrived]:
    yield first
    yield from rest

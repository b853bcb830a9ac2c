"""StreamReading: the marked stream, read some manifests at a time, up to a place in the WAL. Blocks."""

from __future__ import annotations

import time
from typing import Final

from penstock.kinesis.read.chain import Chain, StreamGap
from penstock.kinesis.read.manifest_log import ManifestLog, Place
from penstock.kinesis.read.marked_plan import BOUNDED, MarkedOffset, ReadLimits
from penstock.lake.errors import CannotCompare
from penstock.lake.stream.place import StreamPlace
from penstock.lake.stream.told import Told
from penstock.model.stream_position import StreamPosition
from penstock.sources.marked_driver import MarkedDriver
from penstock.sources.marked_query import EARLIEST, MarkedQuery

_POLL_S: Final = 0.25
_END_OF_ALL: Final = str(StreamPosition(2**32 - 1, 2**64 - 1))


class StreamReading:
    """Brings what a slot's manifests tell into a `Told`. Used once, by one thread at a time.

    Behind a gap it begins again, with nothing told: what was told before it lacks changes, and would be
    compared with rows that have them. A manifest that comes late is not waited for: without what it tells
    less is compared, and nothing wrongly.
    """

    def __init__(self, place: StreamPlace, marks_stream: str, slot: str) -> None:
        self._place = place
        self._slot = slot
        query = MarkedQuery(
            place.stream,
            place.region,
            place.endpoint_url,
            marks_stream,
            slot,
            EARLIEST,
            (),
            True,
            ReadLimits(),
        )
        self._driver = MarkedDriver(query)
        self._log = ManifestLog(query.open(marks_stream), slot)
        self._at: MarkedOffset | None = None
        self.gap_before: StreamPosition | None = None
        """Where what is told begins, if that is behind a gap."""

    def begin(self, system: str) -> StreamPosition:
        """Find the first manifest whose records are there; where it begins.

        CannotCompare if the stream is not this server's; what `MarkedDriver` raises if it has no manifests.
        """
        found = self._driver.begin()
        if found is None:
            raise self._driver.unmarked()
        if found.system != system:
            raise CannotCompare(
                f"{self._place.stream} has the changes of the database system {found.system} under the slot"
                f" {self._slot}, and the server is {system}. Fix: connect to the former"
            )
        self._at = found
        return StreamPosition.parse(found.resolved)

    def read_what_is_there(self, told: Told, up_to: StreamPosition) -> None:
        """Read up to the first manifest that reaches a place, or all that are there now."""
        while self._now() < str(up_to) and self._step(told, None):
            pass

    def read_below(self, told: Told, cut: StreamPosition) -> int:
        """Read what manifests tell now of all below a place; the commit LSN up to which they do."""
        while self._now() < str(cut) and self._step(told, str(cut)):
            pass
        return StreamPosition.parse(self._now()).commit_lsn - 1

    def read_until(self, told: Told, up_to: StreamPosition, timeout_s: float) -> None:
        """Read all below a place, and nothing else; CannotCompare if no manifest reaches it in time."""
        deadline: float | None = None
        while self._now() < str(up_to):
            if self._step(told, str(up_to)):
                continue
            deadline = time.monotonic() + timeout_s if deadline is None else deadline
            if time.monotonic() > deadline:
                at = StreamPosition.parse(self._now())
                raise CannotCompare(
                    f"the manifests of {self._slot} reached {at.described()} after {timeout_s:g} s, and the"
                    f" snapshot is of {up_to.described()}: the stream doesn't have everything yet. Fix: start"
                    " penstock capture, see what holds it up, or raise --timeout"
                )
            time.sleep(_POLL_S)

    def _now(self) -> str:
        assert self._at is not None, "it has begun"
        return self._at.resolved

    def _step(self, told: Told, below: str | None) -> bool:
        """Read what the next manifests tell, as far as it lies below a place; False if there are none."""
        assert self._at is not None, "it has begun"
        now = time.monotonic()
        try:
            end = self._next(now)
        except StreamGap:
            if self._leap(told):
                return True
            end = self._next(now)
        if end == self._at:
            return False
        cut = end if below is None else end._replace(resolved=min(end.resolved, below))
        told.read(self._driver.tasks(self._at, cut, now))
        self._at = end
        return True

    def _next(self, now: float) -> MarkedOffset:
        """With an end there is no patience: StreamGap as soon as a manifest is held back."""
        assert self._at is not None, "it has begun"
        return self._driver.plan.advance(self._at, BOUNDED, now, up_to=_END_OF_ALL)

    def _leap(self, told: Told) -> bool:
        """Begin again behind the last gap; False if what was missing has come meanwhile."""
        assert self._at is not None, "it has begun"
        chain: Chain[Place | None] = Chain(
            slot=self._slot, system=self._at.system, applied=self._at.resolved, place=self._at.place
        )
        for found in self._log.arrivals(self._at.place):
            chain.take(found.manifest, found.place)
        has_gap = chain.gap is not None
        while chain.gap is not None:
            place = chain.resume_at
            start, _ = chain.leap()
            self._at = self._at._replace(resolved=start, place=place, begins=start, begins_behind=place)
            self.gap_before = StreamPosition.parse(start)
            told.forget()
        return has_gap

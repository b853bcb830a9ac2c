"""MarkedPlan: offsets of a marked stream, batch by batch. The same offsets give the same changes."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from penstock.kinesis.marked.manifest import Manifest
from penstock.kinesis.read.chain import Chain, Link, denies, has_happened
from penstock.kinesis.read.errors import RecordsExpired
from penstock.kinesis.read.manifest_log import Place
from penstock.kinesis.read.steady_reading import Fetch, SteadyReading
from penstock.model.stream_position import StreamPosition

PATIENCE_S: Final = 60.0
"""How long a manifest that comes late is waited for."""
MOST_STEPS: Final = 5_000
"""So many manifests are read ahead of a batch, or make one: some eight minutes of a busy stream."""
_MOST_AHEAD: Final = 4 * MOST_STEPS
"""So many manifests are remembered, with those that said nothing new. Without an older one it is a gap."""


class MarkedOffset(NamedTuple):
    """How far a reader is: everything below `resolved`."""

    resolved: str
    place: Place | None
    """Manifests behind it have to be read."""
    system: str
    begins: str
    """Where the first batch of all began: a start is only a word, and Spark keeps ends alone."""
    begins_behind: Place | None = None
    """Manifests behind it had to be read then."""

    @property
    def beginning(self) -> MarkedOffset:
        """The offset of that start."""
        return self._replace(resolved=self.begins, place=self.begins_behind)


class ReadLimits(NamedTuple):
    """How much a batch may hold; one manifest may exceed it."""

    changes: int | None = None
    size_bytes: int | None = None


BOUNDED: Final = ReadLimits(changes=2_000_000, size_bytes=1 << 30)
"""What is read at once where nobody says how much."""


class _Step(NamedTuple):
    link: Link
    resume_at: Place | None


class _Taken(NamedTuple):
    place: Place
    manifest: Manifest


class _Line(NamedTuple):
    """What tells which positions a manifest denies."""

    timeline: int
    history: tuple[tuple[int, str], ...]


class MarkedPlan:
    """Follows the manifests behind an offset. Knows no clock and no Spark; `fetch` asks the stream.

    1. `advance` takes new manifests, no more than a batch needs, and gives the offset of the next batch: as
       many links of the chain as the limits allow, at least one, or the same offset if there is none. What
       came on the same page is there for the next one (SteadyReading).
    2. `links` gives the links between two offsets, those of a restarted query included: then the chain is
       built again from the first of them. Where it doesn't reach the second, manifests are gone: an error.
       A manifest reaches it only if the second has happened in its history: others tell of other changes.
    3. What was read ahead and never happened in the history of a later manifest is left out, for as long as
       it is in no batch. What is in one counts as applied. The chain is then built again from all that was
       taken behind the offset: what had said nothing new beside the lost ones may be needed now.
    4. `held_since` is when a manifest was first missed that follows the last link; too long ago is a gap. So
       are more that wait for it than ever come too early: whoever was stopped for longer than retention finds
       nothing else, up to the end of the stream, and is told so before all of that is read.
    """

    def __init__(self, fetch: Fetch, slot: str) -> None:
        self._reading = SteadyReading(fetch)
        self._slot = slot
        self._chain: Chain[Place | None] | None = None
        self._steps: list[_Step] = []
        """Behind `_at`, in order."""
        self._changes = self._bytes = 0
        """What the steps hold together."""
        self._at: MarkedOffset | None = None
        self._ahead: deque[_Taken] = deque(maxlen=_MOST_AHEAD)
        """All that was taken and ends behind `_at`, in order, except what was left out."""
        self._lines: dict[_Line, Manifest] = {}
        """One manifest of each history that was seen."""
        self._held_at: str | None = None
        """The end of the last link when a manifest behind it was missed; None: none is."""
        self._held_since = 0.0
        self.is_at_tip = False
        """Whether the last call read all manifests that were there: it stops where a batch is full."""

    def advance(
        self, offset: MarkedOffset, limits: ReadLimits, now: float, *, up_to: str | None = None
    ) -> MarkedOffset:
        """The end of the next batch; not beyond `up_to`, and then no manifest is waited for."""
        self._go_to(offset)
        patience_s = PATIENCE_S if up_to is None else 0.0
        self._read(now, patience_s, lambda: len(self._steps) >= MOST_STEPS or self._exceeds(limits))
        changes = size_bytes = 0
        chosen: _Step | None = None
        for step in self._steps[:MOST_STEPS]:
            said = step.link.manifest
            changes, size_bytes = changes + said.changes, size_bytes + said.bytes
            is_over = _exceeds(changes, limits.changes) or _exceeds(size_bytes, limits.size_bytes)
            if (chosen is not None and is_over) or (up_to is not None and said.resolved > up_to):
                break
            chosen = step
        if chosen is None:
            return offset
        return offset._replace(resolved=chosen.link.manifest.resolved, place=chosen.resume_at)

    def links(self, start: MarkedOffset, end: MarkedOffset, now: float) -> list[Link]:
        """What lies between them."""
        self._go_to(start)
        self._read(now, 0.0, lambda: self._reaches(end.resolved) or self._has_passed(end.resolved))
        if not self._reaches(end.resolved):
            raise RecordsExpired(
                f"the manifests up to {StreamPosition.parse(end.resolved).described()} are no longer there:"
                " the stream's retention has passed them, or it is another stream. Fix: begin again, with a"
                " new snapshot of what is kept downstream"
            )
        return [step.link for step in self._steps if step.link.start < end.resolved]

    @property
    def newest(self) -> str | None:
        """The end of the last link that is known."""
        if self._steps:
            return self._steps[-1].link.manifest.resolved
        return None if self._at is None else self._at.resolved

    def _go_to(self, offset: MarkedOffset) -> None:
        """Forget what lies before an offset; or build the chain again, if it isn't on the way."""
        if self._at is not None and self._chain is not None:
            for count, step in enumerate(self._steps, start=1):
                if step.link.manifest.resolved == offset.resolved:
                    for each in self._steps[:count]:
                        self._count(each.link.manifest, -1)
                    del self._steps[:count]
                    self._at = offset
                    self._remember(each for each in self._ahead if each.manifest.resolved > offset.resolved)
                    return
            if self._at.resolved == offset.resolved:
                return
        self._lines = {}
        self._build(offset, [])

    def _build(self, offset: MarkedOffset, ahead: Iterable[_Taken]) -> None:
        """The chain from an offset on, of these."""
        self._at = offset
        self._steps, self._changes, self._bytes = [], 0, 0
        self._held_at = None
        self._chain = Chain(
            slot=self._slot, system=offset.system, applied=offset.resolved, place=offset.place
        )
        self._remember(ahead)
        for taken in self._ahead:
            self._link(taken)

    def _remember(self, ahead: Iterable[_Taken]) -> None:
        self._ahead = deque(ahead, maxlen=_MOST_AHEAD)

    def _reaches(self, resolved: str) -> bool:
        """Whether the links have all that lies before it, in a history in which that has happened."""
        if self._at is not None and resolved <= self._at.resolved:
            return True
        place = bisect_left(self._steps, resolved, key=lambda step: step.link.manifest.resolved)
        return place < len(self._steps) and has_happened(resolved, self._steps[place].link.manifest)

    def _has_passed(self, resolved: str) -> bool:
        """Whether as many links lie behind it as are ever read ahead: what reached it would be among them."""
        return len(self._steps) > MOST_STEPS and self._steps[-MOST_STEPS].link.start >= resolved

    def _exceeds(self, limits: ReadLimits) -> bool:
        return _exceeds(self._changes, limits.changes) or _exceeds(self._bytes, limits.size_bytes)

    def _count(self, manifest: Manifest, times: int) -> None:
        self._changes += times * manifest.changes
        self._bytes += times * manifest.bytes

    def _read(self, now: float, patience_s: float, is_enough: Callable[[], bool]) -> None:
        """Take manifests until there are enough, or all that are there."""
        assert self._chain is not None, "the plan is at an offset"
        self.is_at_tip = False
        if is_enough():
            return
        for place, manifest in self._reading.behind(self._chain.place):
            has_more = self._take(_Taken(place, manifest))
            if has_more and is_enough():
                return
            if not has_more and self._chain.is_full and (gap := self._chain.gap) is not None:
                raise gap
        self.is_at_tip = True
        gap = self._chain.gap
        if gap is None:
            self._held_at = None
            return
        if self._held_at != self._chain.applied:
            self._held_at, self._held_since = self._chain.applied, now
        if now - self._held_since >= patience_s or self._chain.is_full:
            raise gap

    def _take(self, taken: _Taken) -> bool:
        """The next manifest; whether there are more links now."""
        manifest, at, chain = taken.manifest, self._at, self._chain
        assert at is not None, "the plan is at an offset"
        assert chain is not None, "the plan is at an offset"
        is_ours = (manifest.slot, manifest.system) == (self._slot, at.system)
        if not is_ours or manifest.resolved <= at.resolved:
            return self._link(taken)
        if any(denies(each, manifest.resolved) for each in self._lines.values()):
            chain.skip(taken.place)
            return False
        line = _Line(manifest.resolved_position.timeline, tuple(manifest.history))
        if line not in self._lines:
            self._lines[line] = manifest
            happened = [each for each in self._ahead if not denies(manifest, each.manifest.resolved)]
            if len(happened) < len(self._ahead):
                self._build(at, happened)
        has_more = self._link(taken)
        self._ahead.append(taken)
        return has_more

    def _link(self, taken: _Taken) -> bool:
        assert self._chain is not None, "the plan is at an offset"
        links = self._chain.take(taken.manifest, taken.place)
        self._steps += [_Step(link, resume_at) for link, resume_at in links]
        for link, _ in links:
            self._count(link.manifest, 1)
        return bool(links)


def _exceeds(amount: int, limit: int | None) -> bool:
    return limit is not None and amount > limit

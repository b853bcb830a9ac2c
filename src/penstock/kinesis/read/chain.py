"""Chain: which manifests are to be applied, in which order, and what must never be built on."""

from __future__ import annotations

from typing import Final, Generic, NamedTuple

from penstock.kinesis.marked.manifest import Manifest
from penstock.kinesis.read.errors import StreamReadError
from penstock.kinesis.read.held_back import HeldBack, P
from penstock.model.lsn import parse_lsn
from penstock.model.stream_position import StreamPosition

MOST_HELD: Final = 5_000
"""So many manifests never come before one that they follow: to write them takes more than half a minute."""


class HistoryLost(StreamReadError):
    """What was applied never happened in the server's history: only a new snapshot can go on."""


class StreamGap(StreamReadError):
    """Manifests are missing between what was applied and what comes."""


class Link(NamedTuple):
    """A manifest that is to be applied: everything in it from `start` on."""

    manifest: Manifest
    start: str
    """What lies below was applied before."""


class Chain(Generic[P]):
    """Puts manifests in order behind what was applied. Pure; a position's text sorts as the position does.

    1. A manifest of another slot isn't our concern; one of another system under our slot's name is an error.
    2. One that ends at or below what was applied says nothing new.
    3. What was applied must lie on the line of the manifest's history, else HistoryLost: at once, for nothing
       that comes late can change that.
    4. One that begins beyond what was applied is held back: another may come late. Who waits too long for
       that asks `gap`; who finds it `is_full` need not wait, and must not hold still more.
    5. All others are Links, and what was applied is then where they end.
    6. `leap` goes on behind a gap, for a reader that can replace what it has.
    7. `resume_at` says from where on manifests have to be read again after a restart that knows only what
       was applied: everything before it was applied, or says nothing new.
    """

    def __init__(self, *, slot: str, system: str | None, applied: str | None, place: P) -> None:
        """`applied` None: the first manifest that is taken is where it begins. `place`: read up to here."""
        self._slot = slot
        self.system = system
        self.applied = applied
        self._place = place
        self._held = HeldBack[P]()

    @property
    def resume_at(self) -> P:
        """Read manifests from behind this place on."""
        return self._held.before(self._place)

    @property
    def place(self) -> P:
        """Everything up to here was taken."""
        return self._place

    @property
    def gap(self) -> StreamGap | None:
        """What is missing for those that are held back, if any are."""
        first = self._held.begins
        if first is None or self.applied is None:
            return None
        return StreamGap(
            f"GAP: manifests are missing in the stream. Applied is everything up to {_shown(self.applied)},"
            f" and the next manifest begins at {_shown(first)}: changes between them, if there were any, are"
            f" lost. {_begin_again(first)}"
        )

    @property
    def is_full(self) -> bool:
        """Whether more are held back than ever come too early: what is missing doesn't come."""
        return len(self._held) > MOST_HELD

    def take(self, manifest: Manifest, place: P) -> list[tuple[Link, P]]:
        """The next manifest, and where it stands; gives what is to be applied, each with its `resume_at`."""
        if manifest.slot != self._slot:
            self.skip(place)
            return []
        if self.system is None:
            self.system = manifest.system
        if manifest.system != self.system:
            raise StreamReadError(
                f"the stream has manifests of system {manifest.system} under the slot {self._slot}; this"
                f" reader is bound to system {self.system}: another server, or one made by initdb, a dump or"
                f" pg_upgrade. {_begin_again(manifest.since)}"
            )
        if self.applied is None:
            self.applied = manifest.since
        if manifest.resolved > self.applied:
            self._check_history(manifest)
        before, self._place = self._place, place
        self._held.add(manifest, before)
        return self._links()

    def skip(self, place: P) -> None:
        """What stands here is not to be applied, whatever else comes."""
        self._place = place

    def leap(self) -> tuple[str, list[tuple[Link, P]]]:
        """Go on behind a gap: where that is, and what is to be applied from there on, if anything is.

        What is missing is nowhere: whoever lacks it has to begin again.
        """
        start = self._held.begins
        assert start is not None, "there is a gap"
        self.applied = start
        return start, self._links()

    def _links(self) -> list[tuple[Link, P]]:
        links: list[tuple[Link, P]] = []
        assert self.applied is not None, "there is a first manifest"
        while (manifest := self._held.take(self.applied)) is not None:
            if manifest.resolved <= self.applied:
                continue
            self._check_history(manifest)
            link = Link(manifest, self.applied)
            self.applied = manifest.resolved
            links.append((link, self.resume_at))
        return links

    def _check_history(self, manifest: Manifest) -> None:
        assert self.applied is not None, "there is a first manifest"
        if not has_happened(self.applied, manifest):
            raise HistoryLost(
                f"what was applied up to {_shown(self.applied)} never happened in the history of"
                f" {manifest.resolved_position.described()}: a standby was promoted that had not all of it."
                f" {_begin_again(manifest.since)}"
            )


def has_happened(position: str, manifest: Manifest) -> bool:
    """Whether everything up to a position is on the line of a manifest's history."""
    at = StreamPosition.parse(position)
    left = {timeline: parse_lsn(lsn) for timeline, lsn in manifest.history}.get(at.timeline)
    return at.timeline == manifest.resolved_position.timeline if left is None else at.commit_lsn <= left


def denies(later: Manifest, position: str) -> bool:
    """Whether a position of an earlier timeline never happened in a manifest's history.

    All manifests with the same history and timeline deny the same positions.
    """
    return StreamPosition.parse(position).timeline < later.resolved_position.timeline and not has_happened(
        position, later
    )


def _shown(position: str) -> str:
    return StreamPosition.parse(position).described()


def _begin_again(position: str) -> str:
    return (
        "Fix: begin again, with a new snapshot of what is kept downstream (a query of Spark's: with a new"
        f' checkpoint and .option("startingPosition", "{position}"))'
    )

"""Newest: where a reader begins that wants only what comes from now on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from penstock.kinesis.marked.manifest import Manifest
from penstock.kinesis.read.manifest_log import Place
from penstock.kinesis.read.marked_plan import MarkedOffset


class Newest:
    """Takes manifests in parts, the newest part first, until they tell where the chain ends. Pure.

    1. It ends with the highest `resolved`, and the last manifest of all is its place: one that was given up
       may have been carried out late, behind higher ones.
    2. A single manifest proves nothing: it may be the last word of a leader that slept for hours, and the
       chain of its successor lies further back. Two of one leadership do (`is_certain`): a leader sends
       another only after the first was answered or given up, and when it has made sure that it leads. So
       everything that Postgres was told of before is at or below the first one's end, and everything since
       is in these parts.
    3. If all that is left of a stream proves nothing, its highest manifest is as good as any. If that is
       wrong, a reader that begins there finds a gap, and says so.
    4. A server that is no longer the one that writes doesn't count.
    """

    def __init__(self) -> None:
        self._last: tuple[Place, str] | None = None
        """The last manifest's place and system."""
        self._highest: dict[str, Manifest] = {}
        self._told_by: Counter[tuple[str, str]] = Counter()

    @property
    def is_certain(self) -> bool:
        """Whether nothing further back can say more."""
        if self._last is None:
            return False
        _, ours = self._last
        return any(count > 1 for (system, _), count in self._told_by.items() if system == ours)

    @property
    def manifest(self) -> Manifest | None:
        """The highest of the server that writes now; None: there are none."""
        return None if self._last is None else self._highest[self._last[1]]

    @property
    def offset(self) -> MarkedOffset | None:
        """Behind all of them; None: there are none."""
        if self._last is None:
            return None
        place, system = self._last
        resolved = self._highest[system].resolved
        return MarkedOffset(resolved, place, system, resolved, place)

    def take(self, part: Iterable[tuple[Place, Manifest]]) -> None:
        """The next part, further back than all before."""
        last: tuple[Place, str] | None = None
        for place, manifest in part:
            system = manifest.system
            known = self._highest.get(system, manifest)
            self._highest[system] = max(known, manifest, key=lambda each: each.resolved)
            self._told_by[system, manifest.by] += 1
            last = place, system
        self._last = self._last or last

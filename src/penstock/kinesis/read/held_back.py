"""HeldBack: manifests that came before those that they follow."""

from __future__ import annotations

from collections import OrderedDict
from heapq import heappop, heappush
from typing import Generic, TypeVar

from penstock.kinesis.marked.manifest import Manifest

P = TypeVar("P")
"""Where a manifest was found."""


class HeldBack(Generic[P]):
    """Gives manifests back when what was applied has come to them. Pure.

    Behind a gap there are many, and each of them is looked at when it comes and when it is taken: so nothing
    here looks at all of them. What was applied never goes back.
    """

    def __init__(self) -> None:
        self._came = 0
        self._befores: OrderedDict[int, P] = OrderedDict()
        """Of each, by the order in which they came: up to where everything was read before it."""
        self._early: list[tuple[str, int, Manifest]] = []
        """A heap: by where they begin. No two have the same number, so manifests are never compared."""
        self._ready: list[tuple[str, int, Manifest]] = []
        """A heap: those that begin at or below what was applied, by where they end."""

    def __len__(self) -> int:
        return len(self._befores)

    def before(self, otherwise: P) -> P:
        """Up to where everything was read before the first one came; or this, if there is none."""
        return next(iter(self._befores.values()), otherwise)

    @property
    def begins(self) -> str | None:
        """Where the first one begins that `take` has not come to; None: there is none."""
        return self._early[0][0] if self._early else None

    def add(self, manifest: Manifest, before: P) -> None:
        """Hold one."""
        self._came += 1
        self._befores[self._came] = before
        heappush(self._early, (manifest.since, self._came, manifest))

    def take(self, applied: str) -> Manifest | None:
        """Of those that begin at or below what was applied, the one that ends first; None: there is none."""
        while self._early and self._early[0][0] <= applied:
            _, number, manifest = heappop(self._early)
            heappush(self._ready, (manifest.resolved, number, manifest))
        if not self._ready:
            return None
        _, number, manifest = heappop(self._ready)
        del self._befores[number]
        return manifest

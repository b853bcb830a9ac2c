"""SteadyReading: manifests behind a place, again and again, without reading any of them twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from penstock.kinesis.marked.manifest import Manifest
from penstock.kinesis.read.errors import RecordsExpired
from penstock.kinesis.read.manifest_log import Place

Fetch = Callable[[Place | None], Iterable[tuple[Place, Manifest]]]
"""The manifests that are there now, behind a place."""


class SteadyReading:
    """Whoever takes a few manifests and comes back for more gets them from where it stopped.

    1. A page has thousands of them, and each is of the 2 MB/s that all readers of a shard share: so what was
       fetched and not taken is kept. That is a page at most.
    2. Whoever comes back at another place, because it didn't use what it was given last or begins elsewhere,
       gets a new reading.
    3. It ends with what is there now, as `fetch` does: behind what was kept comes a new reading. That also
       knows better if the shard has expired since then.
    """

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._rest: Iterator[tuple[Place, Manifest]] | None = None
        self._given: Place | None = None
        """Where the last one stands that was given; or behind which place the reading began."""

    def behind(self, place: Place | None) -> Iterator[tuple[Place, Manifest]]:
        """All that are there now."""
        if self._rest is not None and self._given == place:
            with suppress(RecordsExpired):
                yield from self._give(self._rest)
            place = self._given
        self._given, self._rest = place, iter(self._fetch(place))
        yield from self._give(self._rest)
        self._rest = None

    def _give(self, found: Iterator[tuple[Place, Manifest]]) -> Iterator[tuple[Place, Manifest]]:
        # Not `yield from`: that would close a generator together with whoever stops asking for more.
        for each in found:
            self._given = each[0]
            yield each

"""ShardCounts: records accepted and throttled, by shard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector


class ShardCounts(Collector):
    """Two counters with a shard each.

    The library's own counter takes a lock and looks up its label for each shard of each request; a stream of
    a hundred shards would feel it.
    """

    def __init__(
        self, *, accepted: tuple[str, str], throttled: tuple[str, str], registry: CollectorRegistry
    ) -> None:
        """Each has a name and a help text."""
        self._accepted_is = accepted
        self._throttled_is = throttled
        self._accepted = Counter[str]()
        self._throttled = Counter[str]()
        registry.register(self)

    def count_accepted(self, records: Mapping[str, int]) -> None:
        """How many records in each shard."""
        self._accepted.update(records)

    def count_throttled(self, shards: Iterable[str]) -> None:
        """A shard for each record."""
        self._throttled.update(shards)

    def collect(self) -> Iterable[Metric]:
        """Both, for the registry."""
        yield _family(*self._accepted_is, self._accepted)
        yield _family(*self._throttled_is, self._throttled)


def _family(name: str, what: str, counts: Counter[str]) -> Metric:
    family = CounterMetricFamily(name, what, labels=["shard"])
    for shard, count in sorted(counts.items()):
        family.add_metric([shard], count)
    return family

"""WaitHistogram: a histogram that takes many equal waits at once, and knows the longest."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class WaitHistogram(Collector):
    """Seconds waited, counted for each of a number of things that waited together.

    The library's own histogram takes one observation a call, which is too dear for each of fifty thousand
    records a second. The longest is a gauge of its own, because a bucket only says "longer than".
    """

    def __init__(
        self,
        histogram: tuple[str, str],
        *,
        longest: tuple[str, str],
        buckets: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        """Both have a name and a help text."""
        self._histogram_is = histogram
        self._longest_is = longest
        self._bounds = (*buckets, float("inf"))
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0
        self._longest = 0.0
        registry.register(self)

    def observe(self, seconds: float, times: int = 1) -> None:
        """So many waited for so long."""
        self._counts[bisect_left(self._bounds, seconds)] += times
        self._sum += seconds * times
        self._longest = max(self._longest, seconds)

    def collect(self) -> Iterable[Metric]:
        """The histogram and the gauge, for the registry."""
        cumulated = zip(map(_text, self._bounds), accumulate(self._counts), strict=True)
        yield HistogramMetricFamily(*self._histogram_is, buckets=list(cumulated), sum_value=self._sum)
        yield GaugeMetricFamily(*self._longest_is, self._longest)


def _text(bound: float) -> str:
    return "+Inf" if bound == float("inf") else str(bound)

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from penstock.status.wait_histogram import WaitHistogram


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def waits(registry: CollectorRegistry) -> WaitHistogram:
    return WaitHistogram(
        ("some_wait_seconds", "time spent"),
        longest=("some_wait_longest_seconds", "the most"),
        buckets=(0.01, 0.1),
        registry=registry,
    )


def bucket(registry: CollectorRegistry, bound: str) -> float | None:
    return registry.get_sample_value("some_wait_seconds_bucket", {"le": bound})


def test_each_of_those_that_waited_together_counts(registry: CollectorRegistry, waits: WaitHistogram) -> None:
    waits.observe(0.005, times=3)
    waits.observe(0.05)
    waits.observe(2.0, times=2)

    assert [bucket(registry, bound) for bound in ("0.01", "0.1", "+Inf")] == [3, 4, 6]
    assert registry.get_sample_value("some_wait_seconds_count") == 6
    assert registry.get_sample_value("some_wait_seconds_sum") == pytest.approx(4.065)


def test_a_wait_as_long_as_a_bound_is_within_it(registry: CollectorRegistry, waits: WaitHistogram) -> None:
    waits.observe(0.01)

    assert bucket(registry, "0.01") == 1


def test_the_longest_is_kept(registry: CollectorRegistry, waits: WaitHistogram) -> None:
    for seconds in (0.2, 0.7, 0.1):
        waits.observe(seconds)

    assert registry.get_sample_value("some_wait_longest_seconds") == 0.7


def test_before_the_first_wait_everything_is_there_and_zero(
    registry: CollectorRegistry, waits: WaitHistogram
) -> None:
    text = generate_latest(registry).decode()

    assert "some_wait_seconds_count 0.0" in text
    assert "some_wait_longest_seconds 0.0" in text

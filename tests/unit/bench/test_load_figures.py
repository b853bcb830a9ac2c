"""The figures that `penstock bench` reads off /metrics."""

from __future__ import annotations

from penstock.bench.load import Load
from penstock.status.board import StatusBoard
from penstock.status.health import Health
from penstock.status.metrics import CaptureMetrics


def load(metrics: CaptureMetrics) -> Load:
    lines = metrics.exposition(StatusBoard("capture", Health()).read()).decode().splitlines()
    samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return Load(
        rate=1.0,
        metrics={name: float(value) for name, _, value in samples},
        core_wait_share=0.0,
        idle_share=0.0,
        commit_to_sink_ms=[],
    )


def test_records_over_the_bound_are_counted_and_those_at_it_are_not() -> None:
    metrics = CaptureMetrics()
    metrics.batcher_wait.observe(0.010, times=90)
    metrics.batcher_wait.observe(0.0101, times=7)

    assert load(metrics).over("batcher_wait") == (7, 97)


def test_the_longest_is_exact_and_p99_is_a_bucket_that_holds_it() -> None:
    metrics = CaptureMetrics()
    metrics.loop_late.observe(0.0002, times=98)
    metrics.loop_late.observe(0.004)
    metrics.loop_late.observe(0.0432)

    measured = load(metrics)

    assert (measured.p99_ms("loop_late"), measured.longest_ms("loop_late")) == (5.0, 43.2)

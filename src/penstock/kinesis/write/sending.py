"""Sending: what everybody who sends to Kinesis in one leadership shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.kinesis.write.gate import Vouched
from penstock.status.health import Health
from penstock.status.metrics import CaptureMetrics


class Sending(NamedTuple):
    """Who says whether we may, who hears how it goes, and how long it may fail."""

    freshness: Vouched
    health: Health
    metrics: CaptureMetrics
    backoff: Callable[[int], float]
    """Seconds to wait after so many failures in a row."""
    outage_limit_s: float
    """After this long without success the leadership ends."""

"""Whether a stream may soon forget what somebody needs, in words."""

from __future__ import annotations

from datetime import timedelta

import pytest

from penstock.kinesis.read.retention import is_late, late_sentence, too_short
from penstock.model.stream_position import StreamPosition

DAY = timedelta(hours=24)


@pytest.mark.parametrize(("hours", "late"), [(0.0, False), (11.9, False), (12.0, True), (30.0, True)])
def test_half_of_the_retention_is_late(hours: float, late: bool) -> None:
    assert is_late(timedelta(hours=hours), DAY) is late


def test_the_words() -> None:
    assert late_sentence("shape a", timedelta(hours=13.25), DAY) == (
        "shape a needs changes that came into the stream 13.2 h ago, which keeps records for 24 h. Fix: let"
        " it keep them longer (aws kinesis increase-stream-retention-period) until the shape has caught up;"
        " else it is snapshotted again"
    )
    assert too_short(StreamPosition(1, 0x30), StreamPosition(1, 0x20)) == (
        "they begin at 0/30 of timeline 1, and the slowest shape needs them from 0/20 of timeline 1 on: all"
        " that are behind would be snapshotted again"
    )

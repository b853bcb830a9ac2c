"""What a leadership that reads a stream says of the stream itself."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from structlog.testing import capture_logs

from penstock.decoding.plugins import STREAM_PLUGIN
from penstock.kinesis.read.marked_stream import StreamAddress
from penstock.model.shape import ShapesFile
from penstock.settings.loading import load_shapes_settings
from penstock.shapes.leadership import Order, Service
from penstock.shapes.stream_leadership import KinesisLeadership
from penstock.shapes.stream_wiring import KinesisPipeline
from penstock.status.board import StatusBoard
from penstock.status.health import Health, Phase
from penstock.status.metrics import ShapesMetrics

SILENT = "no manifest has gone beyond 0/6E"


class Feed:
    """Brought something at a time, and nothing since then."""

    came_at = 0.0

    def stalled(self, now: float, after_s: float, waits_since: float | None) -> str | None:
        assert waits_since is None, "nobody waits"
        return SILENT if now - self.came_at >= after_s else None


def leadership(health: Health, stall_s: float) -> KinesisLeadership:
    nothing: Any = None
    file = ShapesFile("shapes.toml", "/lake", ())
    source = StreamAddress("stream", "slot", "stream", "eu-west-1")
    return KinesisLeadership(
        load_shapes_settings({"STALL_S": str(stall_s)}, dotenv=None),
        Order(file, nothing, source, STREAM_PLUGIN, frozenset(), once=False),
        make_jobs=nothing,
        threads=nothing,
        service=Service(health, ShapesMetrics(), StatusBoard("shapes", health), asyncio.Event()),
    )


async def test_a_stream_that_brings_nothing_is_said_until_it_does() -> None:
    health, feed = Health(), Feed()
    health.enter(Phase.STANDBY)
    leads = leadership(health, stall_s=60)
    pipeline = cast(KinesisPipeline, SimpleNamespace(feed=feed))
    with capture_logs() as said:
        leads._say_silence(pipeline, 59.0)
        assert health.readiness(0.0).ready
        for now in range(60, 180):
            leads._say_silence(pipeline, float(now))
            assert health.readiness(0.0).reasons == [f"source: {SILENT}"]
        feed.came_at = 170.0
        leads._say_silence(pipeline, 180.0)
        assert health.readiness(0.0).ready
        leads._say_silence(pipeline, 230.0)
    assert [event["event"] for event in said] == ["source_silent"] * 3, "every STALL_S, and anew"
    health.end_leadership()
    assert health.readiness(0.0).ready


async def test_a_stream_at_rest_is_not_silent_however_short_the_patience_is() -> None:
    health, feed = Health(), Feed()
    health.enter(Phase.STANDBY)
    leads = leadership(health, stall_s=1)
    leads._say_silence(cast(KinesisPipeline, SimpleNamespace(feed=feed)), 11.0)
    assert health.readiness(0.0).ready

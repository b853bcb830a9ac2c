"""The drain of a leadership of the shapes: the order of its effects, and what a part that hangs holds up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from penstock.errors import LineLost
from penstock.model.shape import ShapesFile
from penstock.postgres.leader.freshness import Freshness
from penstock.settings.loading import load_shapes_settings
from penstock.shapes import ending
from penstock.shapes import leadership as module
from penstock.shapes.leadership import Order, Service
from penstock.shapes.slot_leadership import PostgresLeadership
from penstock.shapes.wiring import ShapesPipeline
from penstock.status.board import StatusBoard
from penstock.status.health import Health, Phase
from penstock.status.metrics import ShapesMetrics
from penstock.status.model import SlotReading, Status

FRESHNESS = Freshness(limit_s=3.0, now=0.0)
FLUSHES = ["log flushed", "hurried", "hurried", "hurried"]
LOOKS = "looked at the tables"
NOTES = "confirmable"
LAST = "last status"


class Site:
    """Stands for LeaderLine and for the parts of a pipeline; writes down who does what."""

    parameters: dict[str, Any] = {}  # noqa: RUF012 - LeaderLine's, and nobody writes to it

    def __init__(self) -> None:
        self.did: list[str] = []
        self.hangs = ""
        """What doesn't end."""
        self.behind_count = 4
        self.confirmed_lsn = 0x400
        self.jobs_left = 3
        self.health = Health()
        self.phases: list[Phase] = []
        self.reading = asyncio.create_task(self._read())
        self.read_fails: Exception | None = None
        # The parts of a ledger.
        self.tracker = self.log = self.backlog = self.plan = self

    async def _read(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if self.read_fails is not None:
                raise self.read_fails from None
            raise

    async def connect(self) -> None:
        raise AssertionError("nobody needs a session here")

    async def last_word(self, send: Callable[[], None], freshness: Freshness) -> None:
        assert freshness is FRESHNESS
        send()

    # What `flush_everything` drives
    def flush(self, now: float) -> None:
        assert self.reading.done(), "nothing is read behind what is flushed"
        self.phases.append(self.health.phase)
        self.did.append("log flushed")

    def make_room(self, now: float) -> None:
        pass

    def wake(self) -> None:
        self.did.append("hurried")
        if self.hangs != "a flush":
            self.jobs_left -= 1
            self.behind_count = min(self.behind_count, self.jobs_left)

    def is_flushed(self) -> bool:
        return self.jobs_left == 0

    # TableWatch, Confirmed and Feed
    async def last_look(self) -> None:
        if self.hangs == "the last look":
            await asyncio.Event().wait()
        self.did.append(LOOKS)

    async def catch_up(self) -> None:
        if self.hangs == "the registry":
            await asyncio.Event().wait()
        self.did.append(NOTES)

    def send(self) -> None:
        self.did.append(LAST)


class Pipeline:
    """The site as a pipeline: a feed's last word is not the line's."""

    def __init__(self, site: Site) -> None:
        self.ledger, self.watch, self.confirmed = site, site, site
        self.readings, self.runner, self.feed = site, site, self
        self.last_word = site.send
        self.confirmed_lsn = site.confirmed_lsn


@pytest.fixture
async def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(ending, "_HURRY_EVERY_S", 0.0)
    site = Site()
    monkeypatch.setattr(module, "LeaderLine", lambda *_, **__: site)
    return site


def leadership_of(site: Site, metrics: ShapesMetrics | None = None) -> PostgresLeadership:
    nothing: Any = None
    return PostgresLeadership(
        load_shapes_settings({"SHUTDOWN_DRAIN_S": "0.2"}, dotenv=None),
        Order(
            ShapesFile("shapes.toml", "/lake", ()), nothing, Path("/log"), "wal2json", frozenset(), once=False
        ),
        make_jobs=nothing,
        threads=nothing,
        service=Service(
            site.health, metrics or ShapesMetrics(), StatusBoard("shapes", site.health), asyncio.Event()
        ),
    )


async def drain(site: Site) -> list[dict[str, Any]]:
    """Drain within a second; returns what was said."""
    leadership = leadership_of(site)
    await asyncio.sleep(0)
    with capture_logs() as said:
        async with asyncio.timeout(10):
            await leadership._drain(cast(ShapesPipeline, Pipeline(site)), site.reading, FRESHNESS)
    return [{name: line[name] for name in line if name != "log_level"} for line in said]


async def test_all_that_was_read_is_in_the_tables_before_the_last_status(site: Site) -> None:
    said = await drain(site)
    assert site.reading.cancelled()
    assert site.did == [*FLUSHES, LOOKS, NOTES, LAST]
    assert site.phases == [Phase.DRAINING]
    assert said == [
        {"event": "draining", "behind": 4},
        {"event": "drained", "confirmed_lsn": "0/400"},
    ]


@pytest.mark.parametrize(
    ("hangs", "did", "behind"),
    [("a flush", [], 4), ("the last look", FLUSHES, 0), ("the registry", [*FLUSHES, LOOKS], 0)],
)
async def test_what_hangs_does_not_hold_up_the_last_status(
    site: Site, hangs: str, did: list[str], behind: int
) -> None:
    site.hangs = hangs
    said = await drain(site)
    assert site.did[-1] == LAST
    assert site.did[: len(did)] == did
    assert not {LOOKS, NOTES} & set(site.did[len(did) : -1]), "nothing comes before what it stands on"
    assert said[1:] == [
        {"event": "drain_incomplete", "behind": behind},
        {"event": "drained", "confirmed_lsn": "0/400"},
    ]


async def test_a_reader_that_fails_at_its_end_changes_nothing(site: Site) -> None:
    site.read_fails = LineLost("cut")
    await drain(site)
    assert site.did == [*FLUSHES, LOOKS, NOTES, LAST]
    assert isinstance(site.reading.exception(), LineLost)


async def test_what_flushes_put_into_quarantine_is_in_reading_and_metric(site: Site) -> None:
    metrics = ShapesMetrics()
    first, second = leadership_of(site, metrics), leadership_of(site, metrics)
    jobs: Any = None
    readings = SimpleNamespace(reading=lambda *_, quarantined: quarantined)
    pipeline = cast(ShapesPipeline, SimpleNamespace(readings=readings))

    first._workplace(jobs).count_quarantined(3)
    second._workplace(jobs).count_quarantined(4)

    assert cast(int, second._reading(pipeline, FRESHNESS)) == 7, "since the process began"
    text = metrics.exposition(Status("shapes", "standby", True, [], SlotReading(0.0))).decode()
    assert "penstock_undeliverable_quarantined_total 7.0" in text


async def test_the_jobs_end_with_the_leadership_when_nothing_runs_any_more(site: Site) -> None:
    did: list[str] = []
    jobs = SimpleNamespace(cancel=None, end=lambda: did.append("ended"))

    async def done(*_: object) -> None:
        """Nothing to wait for."""

    async def settle(_cancel: object) -> None:
        did.append("settled")

    async def lead(*_: object) -> None:
        raise LineLost("cut")

    leads: Any = leadership_of(site)
    leads._line = SimpleNamespace(open=nullcontext, take_lock=done, identify=done)
    leads._make_jobs = lambda _: jobs
    leads._preparation = SimpleNamespace(run=done)
    leads._threads = SimpleNamespace(settle=settle)
    leads._lead = lead
    with pytest.raises(LineLost):
        await leads.run()
    assert did == ["settled", "ended"]


async def test_the_jobs_write_while_the_line_is_fresh(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Callable[[], bool]] = []
    now = 0.0
    monkeypatch.setattr(module, "awake_or_asleep", lambda: now)
    leads: Any = leadership_of(site)
    leads._line = SimpleNamespace(run_together=None)
    pipeline: Any = SimpleNamespace(feed=SimpleNamespace(confirmed_lsn=0))
    leads._threads = SimpleNamespace(settle=lambda _: asyncio.sleep(0))
    jobs: Any = SimpleNamespace(lead=told.append, cancel=None)
    with pytest.raises(AttributeError):
        await leads._serve(pipeline, jobs, (Freshness(limit_s=3.0, now=0.0), None), {})
    (may_write,) = told
    assert may_write()
    now = 3.5
    assert not may_write()

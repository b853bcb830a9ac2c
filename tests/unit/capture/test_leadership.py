"""One leadership of capture: the order of its effects, what is said, what is remembered, and its drain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from penstock.capture import leadership as module
from penstock.capture.leadership import Leadership
from penstock.capture.slot_memory import SlotMemory
from penstock.capture.wiring import SlotStart
from penstock.errors import SlotBusy, SlotInvalid, SlotMoved
from penstock.postgres.leader.freshness import Freshness
from penstock.postgres.leader.line import AnotherLeads, EnsuredSlot
from penstock.postgres.slot.note import NoteRefused, SlotNote
from penstock.postgres.slot.state import SlotState
from penstock.postgres.timeline import ServerIdentity
from penstock.settings.loading import load_capture_settings
from penstock.settings.timings import Timings
from penstock.status.board import StatusBoard
from penstock.status.health import Health, Phase
from penstock.status.metrics import CaptureMetrics
from penstock.status.model import CaptureReading

SERVER = ServerIdentity("700", 1, {})
SLOT = SlotState("s", "logical", "wal2json", "db", False, None, 0x300, 0x200, "reserved", None, "db", 10)
ANOTHER = AnotherLeads(None, "s", slot_is_read=True)
CLAIMED = ["lock", "identify", "slot", "claim"]
DRAIN_S = 0.4


class Site:
    """Stands for LeaderLine, NoteStore, Pipeline and its parts; writes down who does what."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.another: AnotherLeads | None = None
        self.slot: SlotState | None = SLOT
        self.is_new = False
        self.known: SlotNote | None = SlotNote("700", 1, 0x300)
        self.refused: str | None = None
        self.timings = Timings.of(10.0)
        self.cannot_start: Exception | None = None
        self.moved: Exception | None = None
        self.pending_count = 0
        self.confirmed_lsn = 0x400
        self.taken_over: SlotNote | None = None
        self.pipeline_note: SlotNote | None = None
        self.pipeline_store: object = "none yet"
        self.deliver = asyncio.Event()
        self.note = asyncio.Event()
        self.note.set()
        self.stop = asyncio.Event()
        self.stop.set()
        self.memory = SlotMemory()
        self.health = Health()
        self.phases: list[Phase] = []
        self.metrics = CaptureMetrics()
        self.new_histories = 0
        self.marker = None
        # The parts of a pipeline.
        self.tracker = self.publisher = self.noted = self.feedback = self.reader = self

    def install(self, patch: pytest.MonkeyPatch) -> None:
        for name in ("LeaderLine", "NoteStore", "Pipeline", "Gauges", "Catalog"):
            patch.setattr(module, name, self._made if name != "Pipeline" else self._wired)

    def _made(self, *_: object, **__: object) -> Site:
        return self

    def _wired(self, *_: object, start: SlotStart, **__: object) -> Site:
        self.did.append("wired")
        self.pipeline_note, self.pipeline_store = start.note, start.note_store
        return self

    # LeaderLine
    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        yield

    async def take_lock(self) -> AnotherLeads | None:
        self.did.append("lock")
        return self.another

    async def identify(self) -> ServerIdentity:
        self.did.append("identify")
        return SERVER

    async def read_slot(self) -> SlotState | None:
        return self.slot

    async def ensure_slot(self) -> EnsuredSlot:
        self.did.append("slot")
        assert self.slot is not None
        return EnsuredSlot(self.slot, self.is_new)

    async def connect(self) -> None:
        raise AssertionError("nobody needs a session here")

    async def start_stream(self, *_: object, **__: object) -> None:
        self.did.append("stream")
        if self.cannot_start is not None:
            raise self.cannot_start

    async def vouch(self) -> tuple[Freshness, Site]:
        self.did.append("vouch")
        if self.moved is not None:
            raise self.moved
        return Freshness(limit_s=3.0, now=0.0), self

    async def run_together(
        self, reader: Any, others: Mapping[str, Any], *, until: Any, drain: Any, settle: Any
    ) -> None:
        for work in (reader, *others.values()):
            work.close()
        self.did.append("streaming")
        await until
        reading = asyncio.create_task(asyncio.Event().wait())
        await drain(reading)
        assert reading.cancelled(), "nothing more is read"

    async def last_word(self, send: Any, freshness: Freshness, *, within_s: float) -> None:
        assert 0 < within_s <= DRAIN_S + module.LAST_WORDS_S
        send()

    def hang_up(self) -> None:
        self.did.append("hang up")

    # NoteStore
    async def claim(self) -> SlotNote | None:
        self.did.append("claim")
        return self.known

    async def take_over(self, note: SlotNote) -> None:
        self.did.append("take over")
        self.taken_over = note
        if self.refused is not None:
            raise NoteRefused(self.refused)

    async def forget(self) -> None:
        self.did.append("forget")

    # The parts of a pipeline, and Gauges
    async def run(self) -> None:
        raise AssertionError("run_together runs nothing here")

    watch = guard = run

    def on_trouble(self, callback: object) -> None:
        pass

    def key_indexes(self) -> None:
        pass

    def reading(self) -> CaptureReading:
        return CaptureReading(0.0, 0, 0, 0, 0, 0, 0)

    def sample(self, now: float) -> None:
        self.did.append("sample")

    async def drained(self) -> None:
        self.phases.append(self.health.phase)
        await self.deliver.wait()
        self.did.append("delivered")

    async def finish(self, *, until: float) -> None:
        self.did.append("finish")

    async def catch_up(self) -> None:
        await self.note.wait()
        self.did.append("noted")

    def send(self, *, reply_requested: bool) -> None:
        assert reply_requested
        self.did.append("last status")

    async def close(self, *, until: float | None) -> None:
        assert until is not None
        self.did.append("closed")

    def new_history(self) -> None:
        self.new_histories += 1

    def leadership(self, **variables: str) -> Leadership:
        env = {"KINESIS_STREAM": "x", "AWS_REGION": "eu-west-1", "SHUTDOWN_DRAIN_S": str(DRAIN_S)}
        nothing: Any = None
        return Leadership(
            load_capture_settings(env | variables, dotenv=None),
            sink=nothing,
            memory=self.memory,
            health=self.health,
            metrics=self.metrics,
            board=StatusBoard("capture", self.health),
            stop=self.stop,
            on_new_history=self.new_history,
        )

    def sample_of(self, name: str) -> float | None:
        return self.metrics.registry.get_sample_value(name)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    site = Site()
    site.deliver.set()
    site.install(monkeypatch)
    return site


async def lead(site: Site, **variables: str) -> list[str]:
    """Lead to the end; returns what was said."""
    with capture_logs() as said:
        assert await asyncio.wait_for(site.leadership(**variables).run(), 10) is None
    return [line["event"] for line in said]


class TestOrder:
    async def test_the_note_is_ours_before_anything_is_streamed(self, site: Site) -> None:
        said = await lead(site)
        end = ["delivered", "noted", "last status", "sample", "closed", "hang up"]
        assert site.did == [*CLAIMED, "take over", "stream", "vouch", "wired", "streaming", *end]
        assert said == ["streaming", "draining", "drained"]
        assert site.phases == [Phase.DRAINING]

    async def test_one_who_finds_another_leading_only_looks(self, site: Site) -> None:
        site.another = ANOTHER
        assert await site.leadership().run() == ANOTHER
        assert site.did == ["lock", "identify"]
        assert site.memory.known == SlotNote("700", 1, 0x300)

    @pytest.mark.parametrize("slot", [None, SLOT._replace(confirmed_flush_lsn=None)])
    async def test_a_slot_that_is_not_there_yet_is_not_remembered(
        self, site: Site, slot: SlotState | None
    ) -> None:
        site.another, site.slot = ANOTHER, slot
        await site.leadership().run()
        assert site.memory.known is None

    async def test_a_slot_that_is_lost_is_remembered_and_not_read(self, site: Site) -> None:
        site.slot = SLOT._replace(wal_status="lost")
        with pytest.raises(SlotInvalid):
            await site.leadership().run()
        assert site.memory.known == SlotNote("700", 1, 0x300)
        assert site.did == ["lock", "identify", "slot"]

    async def test_what_was_compared_is_remembered_though_no_stream_begins(self, site: Site) -> None:
        """The next leadership of this process must not say it again."""
        site.known, site.cannot_start = SlotNote("700", 1, 0x280), SlotBusy("by another")
        with pytest.raises(SlotBusy):
            await site.leadership().run()
        assert site.memory.known == SlotNote("700", 1, 0x300)

    async def test_nothing_is_wired_where_the_slot_was_moved_meanwhile(self, site: Site) -> None:
        """The next leadership compares where it stands now with what was known before, and says the GAP."""
        site.moved = SlotMoved("by another")
        with pytest.raises(SlotMoved):
            await site.leadership().run()
        assert site.did[-2:] == ["stream", "vouch"]
        site.moved, site.slot = None, SLOT._replace(confirmed_flush_lsn=0x380)
        assert (await lead(site)).count("GAP") == 1


class TestNote:
    @pytest.mark.parametrize(
        ("noted", "starts"),
        [(0x300, 0x300), (0x280, 0x300), (0x380, 0x380)],
        ids=["as noted", "GAP", "the slot went back, as after a crash"],
    )
    async def test_a_leader_goes_on_from_what_is_known(self, site: Site, noted: int, starts: int) -> None:
        site.known = SlotNote("700", 1, noted)
        said = await lead(site)
        assert site.taken_over == site.pipeline_note == SlotNote("700", 1, starts)
        assert site.pipeline_store is site
        is_gap = noted < 0x300
        assert said.count("GAP") == is_gap
        assert site.sample_of("penstock_gaps_total") == float(is_gap)
        assert site.new_histories == 0
        assert site.memory.known == SlotNote("700", 1, 0x400), "what was confirmed at the end"

    async def test_what_this_process_knows_counts_where_the_note_is_older(self, site: Site) -> None:
        site.known = None
        site.memory.saw(SERVER, 0x380)
        assert "slot_without_note" not in await lead(site)
        assert site.taken_over == SlotNote("700", 1, 0x380)

    @pytest.mark.parametrize("is_new", [False, True])
    async def test_a_slot_of_which_nothing_is_known(self, site: Site, is_new: bool) -> None:
        site.known, site.is_new = None, is_new
        assert ("slot_created" if is_new else "slot_without_note") in (said := await lead(site))
        assert len(said) == 4
        assert site.taken_over == SlotNote("700", 1, 0x300)
        assert site.sample_of("penstock_slot_creations_total") == float(is_new)

    async def test_another_system_is_another_history(self, site: Site) -> None:
        site.known = SlotNote("800", 1, 0x900)
        assert {"system_changed", "GAP"} <= set(await lead(site))
        assert site.new_histories > 0
        assert site.taken_over == SlotNote("700", 1, 0x300), "its positions mean nothing here"

    async def test_a_note_that_may_not_be_kept_is_said_and_done_without(self, site: Site) -> None:
        site.refused = "permission denied"
        assert "slot_note_refused" in await lead(site)
        assert site.pipeline_store is None

    async def test_a_note_that_is_not_wanted_is_removed(self, site: Site) -> None:
        await lead(site, SLOT_NOTE="false")
        assert "forget" in site.did
        assert "take over" not in site.did
        assert site.pipeline_store is None


class TestDrain:
    async def test_what_cannot_be_delivered_in_time_is_said(self, site: Site) -> None:
        """Requests that have left may end; the note and the last status come all the same."""
        site.deliver.clear()
        site.pending_count = 3
        said = await lead(site)
        assert said == ["streaming", "draining", "drain_incomplete", "drained"]
        assert site.did[-6:] == ["finish", "noted", "last status", "sample", "closed", "hang up"]

    async def test_a_note_that_hangs_does_not_hold_the_last_status(self, site: Site) -> None:
        site.note.clear()
        said = await lead(site)
        assert said == ["streaming", "draining", "slot_note_late", "drained"]
        assert site.did[-5:] == ["delivered", "last status", "sample", "closed", "hang up"]

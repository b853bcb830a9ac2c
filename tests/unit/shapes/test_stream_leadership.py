"""A leadership that reads a stream: what it says of it, how it keeps house, and how it begins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime, timedelta
from math import inf
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from penstock.decoding.plugins import STREAM_PLUGIN
from penstock.kinesis.read.errors import StreamReadError
from penstock.kinesis.read.marked_stream import MarkedStream, StreamAddress
from penstock.kinesis.read.retention import LEAST, late_sentence
from penstock.lake.ports import ShapeJobs
from penstock.model.log_offset import LogOffset
from penstock.model.shape import ShapesFile
from penstock.model.stream_position import History
from penstock.postgres.leader.freshness import Freshness
from penstock.postgres.slot.state import SlotState
from penstock.postgres.timeline import ServerIdentity
from penstock.settings.loading import load_shapes_settings
from penstock.shapes import leadership as leadership_module
from penstock.shapes import stream_leadership as module
from penstock.shapes.leadership import Order, Service
from penstock.shapes.pace.flush_tracker import Stalled
from penstock.shapes.preparation import Prepared
from penstock.shapes.stream_leadership import KinesisLeadership
from penstock.shapes.stream_wiring import KinesisPipeline, Streamed
from penstock.shapes.wiring import ShapesPipeline
from penstock.status.board import StatusBoard
from penstock.status.health import Health, Phase
from penstock.status.metrics import ShapesMetrics

SILENT = "no manifest has gone beyond 0/6E"
ADDRESS = StreamAddress("stream", "slot", "stream", "eu-west-1")
BEGAN = 1000.0
DAY, WEEK = timedelta(days=1), timedelta(days=7)
IDENTITY = ServerIdentity("7", 2, {1: 0x50})
HISTORY = History(2, {1: 0x50})
FRESHNESS = Freshness(limit_s=3.0, now=0.0)


class Feed:
    """Brought something at a time, and nothing since then."""

    came_at = 0.0
    received_lsn = 0x100
    confirmed_lsn = 0x90

    def stalled(self, now: float, after_s: float, waits_since: float | None) -> str | None:
        assert waits_since is None, "nobody waits"
        return SILENT if now - self.came_at >= after_s else None


def leadership(health: Health, stall_s: float = 60, board: StatusBoard | None = None) -> KinesisLeadership:
    nothing: Any = None
    file = ShapesFile("shapes.toml", "/lake", ())
    return KinesisLeadership(
        load_shapes_settings({"STALL_S": str(stall_s)}, dotenv=None),
        Order(file, nothing, ADDRESS, STREAM_PLUGIN, frozenset(), once=False),
        make_jobs=nothing,
        threads=nothing,
        service=Service(health, ShapesMetrics(), board or StatusBoard("shapes", health), asyncio.Event()),
    )


def standing_by() -> Health:
    health = Health()
    health.enter(Phase.STANDBY)
    return health


async def test_a_stream_that_brings_nothing_is_said_until_it_does() -> None:
    health, feed = standing_by(), Feed()
    leads = leadership(health, stall_s=60)
    pipeline = cast(KinesisPipeline, SimpleNamespace(feed=feed))
    said_at: list[float] = []

    def say(now: float) -> None:
        with capture_logs() as said:
            leads._say_silence(pipeline, now)
        said_at.extend(now for event in said if event["event"] == "source_silent")
        assert [event["detail"] for event in said] == [SILENT] * len(said)

    say(59.0)
    assert health.readiness(0.0).ready
    for now in range(60, 190):
        say(float(now))
        assert health.readiness(0.0).reasons == [f"source: {SILENT}"]
    feed.came_at = 170.0
    say(190.0)
    assert health.readiness(0.0).ready
    say(230.0)
    assert said_at == [60.0, 120.0, 180.0, 230.0], "every STALL_S, and at once when it is silent again"
    health.end_leadership()
    assert health.readiness(0.0).ready


async def test_a_stream_at_rest_is_not_silent_however_short_the_patience_is() -> None:
    """At rest a manifest comes every ten seconds; two of them have to be missing."""
    health = standing_by()
    leads = leadership(health, stall_s=1)
    pipeline = cast(KinesisPipeline, SimpleNamespace(feed=Feed()))
    leads._say_silence(pipeline, 19.0)
    assert health.readiness(0.0).ready
    with capture_logs() as said:
        for now in (20.0, 20.5, 21.0):
            leads._say_silence(pipeline, now)
    assert not health.readiness(0.0).ready
    assert len(said) == 2, "it is said as often as STALL_S says"


class Over(Exception):
    """The house was kept for as long as a test wants."""


class House:
    """A clock, a stream, a ledger and a board; writes down what is done at which second."""

    minimum = 0x80
    frontier_lsn = 0x90

    def __init__(self) -> None:
        self.now = BEGAN
        self.lasts_s = 0
        self.age = timedelta(minutes=1)
        self.slot: SlotState | None = None
        self.behind: list[Stalled] = []
        self.answers: list[timedelta | StreamReadError] = []
        self.asked_at: list[float] = []
        self.noted: list[tuple[float, float]] = []
        self.trimmed: list[int] = []
        self.feed = Feed()
        self.feed.came_at = inf
        self.ledger = self.tracker = self.backlog = self.readings = self

    # The loop's clock, and the threads that it asks in
    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        assert seconds == 1.0, "once a second"
        self.now += seconds
        if self.now >= BEGAN + self.lasts_s:
            raise Over

    async def to_thread(self, ask: Callable[[], timedelta]) -> timedelta:
        return ask()

    # MarkedStream
    def retention(self) -> timedelta:
        self.asked_at.append(self.now - BEGAN)
        answer = self.answers.pop(0)
        if isinstance(answer, StreamReadError):
            raise answer
        return answer

    # The parts of a pipeline
    def trim(self, lsn: int) -> None:
        self.trimmed.append(lsn)

    def oldest_needed(self, now: datetime, monotonic: float) -> tuple[str, timedelta]:
        assert abs(datetime.now(UTC) - now) < timedelta(minutes=1)
        assert monotonic == self.now
        return "orders", self.age

    def stalled(self, now: float, age_s: float) -> list[Stalled]:
        assert (now, age_s) == (self.now, 0.0)
        return self.behind

    def unflushed_shapes(self) -> bool:
        return False

    def complaints(self, now: float, stall_s: float) -> dict[str, str]:
        assert now == self.now
        return {}

    # StatusBoard
    def note_source(self, retention_s: float, needed_s: float) -> None:
        self.noted.append((retention_s, needed_s))


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> House:
    house = House()
    monkeypatch.setattr(module, "time", house)
    monkeypatch.setattr(module, "asyncio", house)
    return house


async def keep(house: House, health: Health, seconds: int, retention: timedelta) -> list[Any]:
    """Keep house for so many seconds; what is said meanwhile."""
    house.now, house.lasts_s = BEGAN, seconds
    leads = leadership(health, board=cast(StatusBoard, house))
    with capture_logs() as said, pytest.raises(Over):
        await leads._keep_house(cast(KinesisPipeline, house), cast(MarkedStream, house), retention)
    return list(said)


async def test_retention_is_asked_for_every_five_minutes(house: House) -> None:
    house.answers = [WEEK, DAY]
    await keep(house, standing_by(), 700, DAY)
    assert house.asked_at == [300.0, 600.0], "it was asked before the first one"
    known = [retention_s for retention_s, _ in house.noted]
    days = [timedelta(seconds=each).days for each in known]
    assert days == [1] * 300 + [7] * 300 + [1] * 100
    assert {needed_s for _, needed_s in house.noted} == {60.0}


async def test_retention_that_isnt_told_is_what_is_known(house: House) -> None:
    house.answers = [StreamReadError("throttled"), DAY]
    said = await keep(house, standing_by(), 601, WEEK)
    assert [(each["event"], each["detail"], each["taken_h"]) for each in said] == [
        ("retention_unknown", "throttled", 168)
    ]
    assert house.asked_at == [300.0, 600.0], "and not at every turn"
    assert house.noted[-2:] == [(WEEK.total_seconds(), 60.0), (DAY.total_seconds(), 60.0)]


async def test_what_nobody_needs_is_forgotten_at_every_turn(house: House) -> None:
    await keep(house, standing_by(), 3, DAY)
    assert house.trimmed == [house.minimum] * 3


async def test_who_falls_behind_the_stream_is_said_while_he_does(house: House) -> None:
    """At half of what the stream keeps; it may then keep more."""
    health = standing_by()
    house.age = DAY / 2 - timedelta(seconds=1)
    assert await keep(house, health, 1, DAY) == []
    assert health.readiness(0.0).ready

    house.age = DAY / 2
    said = await keep(house, health, 61, DAY)
    sentence = late_sentence("shape orders", DAY / 2, DAY)
    assert [(each["event"], each["shape"], each["detail"]) for each in said] == [
        ("shape_stalled", "orders", sentence)
    ] * 2
    assert health.readiness(0.0).reasons == [f"shape: {sentence}"]

    house.answers = [WEEK]
    await keep(house, health, 301, DAY)
    assert health.readiness(0.0).ready, "it keeps more since it was asked"


async def test_who_holds_a_slot_that_was_left_behind_is_said_beside_all_else(house: House) -> None:
    health = standing_by()
    house.slot = SlotState(
        "left", "logical", "wal2json", "db", False, None, 3, 2, "reserved", None, "db", 2 << 30
    )
    house.behind, house.age = [Stalled("orders", 60.0, LogOffset(7, 0))], DAY / 2
    (said,) = await keep(house, health, 1, DAY)
    assert (said["event"], said["shape"]) == ("shape_stalled", "orders")
    assert said["detail"].startswith(late_sentence("shape orders", DAY / 2, DAY))
    assert "slot left, which was left behind, keeps 2.0 GB of WAL" in said["detail"]
    assert not health.readiness(0.0).ready


async def test_silence_is_looked_for_at_every_turn(house: House) -> None:
    health = standing_by()
    house.feed.came_at = BEGAN
    await keep(house, health, 60, DAY)
    assert health.readiness(0.0).ready
    said = await keep(house, health, 61, DAY)
    assert [each["event"] for each in said] == ["source_silent"]
    assert health.readiness(0.0).reasons == [f"source: {SILENT}"]


class Beginning:
    """Stands for the line, the stream and the pipeline of a leadership; writes down who does what."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.fails = ""
        self.served: dict[str, Any] = {}
        self.streamed: Streamed | None = None
        self.feed = Feed()
        self.parameters: dict[str, Any] = {}
        self.is_awake = False

    def step(self, name: str) -> None:
        self.did.append(name)
        if name == self.fails:
            raise StreamReadError(name)

    # LeaderLine
    async def kept_awake(self, work: Coroutine[Any, Any, Any]) -> Any:
        self.is_awake = True
        try:
            return await work
        finally:
            self.is_awake = False

    async def vouch(self) -> str:
        self.step("vouch")
        return "vouched"

    async def connect(self) -> str:
        self.step("connect")
        return "a session"

    async def stay_awake(self) -> None:
        self.step("stay awake")

    # MarkedStream
    def open(self, address: StreamAddress) -> Beginning:
        assert address is ADDRESS
        self.step("open")
        return self

    def begin(self, position: str) -> str:
        assert position == "where the tables are"
        assert self.is_awake, "the server would end an idle session"
        self.step("begin")
        return "where the manifests begin"

    def retention(self) -> timedelta:
        assert self.is_awake
        self.did.append("retention")
        if self.fails == "retention":
            raise StreamReadError("throttled")
        return WEEK

    def close(self) -> None:
        self.did.append("close")

    # SlotMover
    def mover(self, connection: str, slot: str) -> Beginning:
        assert (connection, slot) == ("a session", "shapes' own")
        return self

    async def move(self, lsn: int) -> None:
        self.did.append(f"move to {lsn:X}")

    # KinesisPipeline
    def pipeline(self, shapes: object, prepared: object, **parts: Any) -> Beginning:
        self.step("pipeline")
        self.streamed = parts["streamed"]
        return self

    async def serve(
        self,
        pipeline: object,
        jobs: object,
        vouched: str,
        others: Mapping[str, Coroutine[Any, Any, None]],
        **said: object,
    ) -> None:
        assert pipeline is self
        self.served = {"vouched": vouched, **said}
        others["house"].close()
        await others["line"]
        self.step("serve")


PREPARED = cast(
    Prepared, SimpleNamespace(keeper=SimpleNamespace(registry=SimpleNamespace(slot="shapes' own")))
)
STEPS = ["open", "begin", "retention", "vouch", "connect", "pipeline", "stay awake", "serve", "close"]


@pytest.fixture
def beginning(monkeypatch: pytest.MonkeyPatch) -> Beginning:
    beginning = Beginning()
    monkeypatch.setattr(leadership_module, "LeaderLine", lambda *_, **__: beginning)
    monkeypatch.setattr(module, "MarkedStream", beginning.open)
    monkeypatch.setattr(module, "SlotMover", beginning.mover)
    monkeypatch.setattr(module, "KinesisPipeline", beginning.pipeline)

    def where(prepared: Prepared, history: History) -> str:
        assert prepared is PREPARED
        assert history == HISTORY
        return "where the tables are"

    monkeypatch.setattr(module, "position_to_begin", where)
    return beginning


def about_to_lead(beginning: Beginning, monkeypatch: pytest.MonkeyPatch) -> KinesisLeadership:
    leads = leadership(Health())
    monkeypatch.setattr(leads, "_serve", beginning.serve)
    return leads


async def lead(leads: KinesisLeadership) -> None:
    await leads._lead(PREPARED, cast(ShapeJobs, None), IDENTITY)


async def test_the_stream_is_found_before_the_lock_is_vouched_for(
    beginning: Beginning, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is slow comes first: from the vouching on, somebody has to go on doing so."""
    leads = about_to_lead(beginning, monkeypatch)
    await lead(leads)
    assert beginning.did == STEPS
    assert beginning.served == {"vouched": "vouched", "stream": "stream", "start_lsn": "0/100"}
    assert beginning.streamed == Streamed(
        ADDRESS, cast(MarkedStream, beginning), "where the manifests begin", "7", HISTORY, beginning.move
    )


@pytest.mark.parametrize("fails", ["begin", "vouch", "connect", "pipeline", "serve"])
async def test_the_stream_is_closed_whatever_fails(
    beginning: Beginning, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    beginning.fails = fails
    with pytest.raises(StreamReadError, match=fails):
        await lead(about_to_lead(beginning, monkeypatch))
    assert beginning.did == [*STEPS[: STEPS.index(fails) + 1], "close"]


async def test_a_stream_that_cant_be_opened_needs_no_closing(
    beginning: Beginning, monkeypatch: pytest.MonkeyPatch
) -> None:
    beginning.fails = "open"
    with pytest.raises(StreamReadError, match="open"):
        await lead(about_to_lead(beginning, monkeypatch))
    assert beginning.did == ["open"]


@pytest.mark.parametrize(("fails", "retention"), [("", WEEK), ("retention", LEAST)])
async def test_the_house_begins_with_what_the_stream_says_or_the_least_that_any_keeps(
    beginning: Beginning, monkeypatch: pytest.MonkeyPatch, fails: str, retention: timedelta
) -> None:
    beginning.fails = fails
    leads = about_to_lead(beginning, monkeypatch)
    given: list[tuple[Any, ...]] = []

    async def nothing() -> None:
        raise AssertionError("the house is not kept here")

    def keep_house(*arguments: Any) -> Coroutine[Any, Any, None]:
        given.append(arguments)
        return nothing()

    monkeypatch.setattr(leads, "_keep_house", keep_house)
    with capture_logs():
        await lead(leads)
    assert given == [(beginning, beginning, retention)]


async def test_the_last_word_moves_the_slot_to_what_the_tables_hold(
    beginning: Beginning, monkeypatch: pytest.MonkeyPatch
) -> None:
    leads = about_to_lead(beginning, monkeypatch)
    await lead(leads)
    await leads._say_last(cast(ShapesPipeline, beginning), FRESHNESS)
    assert beginning.did == [*STEPS, "move to 90"]


async def test_with_once_the_tables_go_up_to_where_the_server_is(
    beginning: Beginning, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def inserted_lsn(connection: str) -> int:
        assert connection == "a session"
        return 0x200

    monkeypatch.setattr(module, "inserted_lsn", inserted_lsn)
    assert await about_to_lead(beginning, monkeypatch)._target_lsn() == 0x200

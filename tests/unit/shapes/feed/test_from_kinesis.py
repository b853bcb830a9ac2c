"""The feed of a marked stream: gaps, silence, and a server that was left behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from penstock.kinesis.marked.manifest import Manifest, TableMark
from penstock.kinesis.read import chain
from penstock.kinesis.read.chain import Chain
from penstock.kinesis.read.errors import StreamReadError
from penstock.kinesis.read.manifest_log import Arrived, Place
from penstock.kinesis.read.marked_stream import MarkedStream
from penstock.model.relation import Relation
from penstock.model.snapshot_again import SnapshotAgain
from penstock.model.stream_position import History, StreamPosition
from penstock.postgres.catalog.table_tree import Member, Tree
from penstock.shapes.feed import from_kinesis
from penstock.shapes.feed.from_kinesis import KinesisFeed
from penstock.shapes.feed.resnapshots import Resnapshots
from penstock.shapes.feed.stream_backlog import StreamBacklog
from penstock.shapes.feed.stream_ledger import StreamLedger
from penstock.shapes.feed.stream_routes import StreamRoutes
from penstock.shapes.pace.flush_plan import FlushPlan
from penstock.shapes.pace.flush_tracker import FlushTracker
from penstock.shapes.pace.held import Held, whole
from penstock.shapes.registry.keeper import Confirmed

NOW = datetime(2026, 11, 17, tzinfo=UTC)
A, B = Relation("public", "a"), Relation("public", "b")
START = 100
FIRST = History(1, {})


def manifest(since: int, resolved: int, *, timeline: int = 1, touched: Relation | None = None) -> Manifest:
    positions = [str(StreamPosition(timeline, lsn)) for lsn in (since, resolved)]
    tables = {} if touched is None else {str(touched): TableMark(1, None)}
    return Manifest("R", "7", "slot", "0" * 12, positions[0], positions[1], len(tables), 0, {}, tables)


class Stream:
    """Gives what it is told, a list a call. Manifests come `every`."""

    def __init__(self, *calls: Sequence[Manifest], every: timedelta) -> None:
        self.calls = list(calls)
        self.every = every
        self.place = 0
        self.empty_calls = 0

    def more(self) -> list[Arrived]:
        if not self.calls:
            self.empty_calls += 1
            return []
        found = []
        for each in self.calls.pop(0):
            self.place += 1
            found.append(Arrived(Place("shard", self.place), each, NOW + self.place * self.every))
        return found


class Desk:
    def __init__(
        self,
        *calls: Sequence[Manifest],
        history: History = FIRST,
        ahead: int = START,
        every: timedelta = timedelta(),
    ) -> None:
        held = Held()
        self.ledger = StreamLedger(
            held=held,
            routes=StreamRoutes({"a": A, "b": B}, [Tree(Member(each, 1, 1, "")) for each in (A, B)]),
            backlog=StreamBacklog(StreamPosition(1, START), lambda *_: (), lambda _: 1),
            tracker=FlushTracker(initial_lsn=START),
            plan=FlushPlan(held=held),
        )
        self.ledger.add("a", interval_s=0.0, held=whole(START - 1), now=0.0)
        self.ledger.add("b", interval_s=0.0, held=whole(ahead - 1), now=0.0)
        self.noted: list[SnapshotAgain] = []
        self.noted_at = 0
        """So many manifests were read then."""
        self.stream = Stream(*calls, every=every)
        self.feed = KinesisFeed(
            cast(MarkedStream, self.stream),
            Chain(slot="slot", system="7", applied=str(StreamPosition(1, START)), place=None),
            self.ledger,
            cast(Confirmed, SimpleNamespace(frontier_lsn=0)),
            cast(Resnapshots, SimpleNamespace(note=self.note)),
            history=history,
            move_slot=self.move,
            on_links=lambda: None,
        )

    async def note(self, again: Sequence[SnapshotAgain]) -> None:
        self.noted += again
        self.noted_at = self.stream.place
        for each in again:
            self.ledger.noted(each.shape)

    async def move(self, lsn: int) -> None:
        raise AssertionError("nobody asked for it")

    def run(self, for_s: float = 0.0) -> None:
        """Read until everything was taken, and for so long at least."""

        async def read() -> None:
            over_at = time.monotonic() + for_s
            reading = asyncio.create_task(self.feed.read())
            # The stream is asked in threads, which can set no event of the loop's.
            while not reading.done() and (self.stream.empty_calls < 3 or time.monotonic() < over_at):  # noqa: ASYNC110
                await asyncio.sleep(0.002)
            if reading.done():
                reading.result()
            reading.cancel()
            await asyncio.wait([reading])

        self.stream.empty_calls = 0
        asyncio.run(read())


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(from_kinesis, "_POLL_EVERY_S", 0.001)


def test_links_move_the_frontier() -> None:
    desk = Desk([manifest(100, 110), manifest(110, 150)], [manifest(150, 160)])
    desk.run()
    assert desk.ledger.tracker.frontier_lsn == desk.feed.received_lsn == 160
    assert desk.noted == []


def test_a_gap_at_the_start_is_said_at_once_and_who_is_behind_it_goes_on() -> None:
    desk = Desk([manifest(200, 210), manifest(210, 220)], ahead=205)
    desk.run()
    assert [again.shape for again in desk.noted] == ["a"]
    assert "GAP" in desk.noted[0].reason
    assert desk.ledger.plan.awaits_snapshot("a")
    assert not desk.ledger.plan.awaits_snapshot("b")
    assert desk.feed.received_lsn == 220
    assert desk.ledger.backlog.last_seen_txn_offset == whole(219)


def test_behind_a_gap_there_may_be_nothing_to_apply() -> None:
    """A slot was dropped and made again on an idle server: its manifests say where it is, and no more."""
    desk = Desk([manifest(200, 200)], [manifest(200, 200)])
    desk.run()
    assert [again.shape for again in desk.noted] == ["a", "b"]
    assert desk.feed.received_lsn == desk.ledger.tracker.frontier_lsn == 200
    assert desk.ledger.backlog.last_seen_txn_offset == whole(199)

    desk = Desk([manifest(200, 200)], [manifest(200, 210)])
    desk.run()
    assert len(desk.noted) == 2
    assert desk.feed.received_lsn == desk.ledger.tracker.frontier_lsn == 210


def test_the_frontier_waits_at_a_gap_until_it_is_noted() -> None:
    ledger = Desk().ledger
    (again, _) = ledger.lost(200, "a gap", 0.0)
    ledger.noted(again.shape)
    assert ledger.tracker.frontier_lsn == START
    ledger.noted("b")
    assert ledger.tracker.frontier_lsn == 200


def test_later_a_manifest_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    late = Desk([manifest(100, 110)], [], [manifest(120, 130)], [manifest(110, 120)])
    late.run()
    assert late.noted == []
    assert late.feed.received_lsn == 130

    lost = Desk([manifest(100, 110)], [], [manifest(120, 130)])
    lost.run()
    assert lost.noted == []
    assert lost.feed.received_lsn == 110
    monkeypatch.setattr(from_kinesis, "PATIENCE_S", 0.0)
    lost.run()
    assert [again.shape for again in lost.noted] == ["a", "b"]
    assert lost.feed.received_lsn == 130


def test_a_gap_shows_though_manifests_never_cease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(from_kinesis, "PATIENCE_S", 0.05)
    desk = Desk([manifest(100, 110)], *([manifest(lsn, lsn + 1)] for lsn in range(120, 2000)))
    desk.run(0.5)
    assert {again.shape for again in desk.noted} == {"a", "b"}
    assert len(desk.noted) == 2
    assert desk.feed.received_lsn > 120


def test_a_gap_before_a_whole_stream_is_said_before_that_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the start all of it is there; the end of it may be a day away, and nothing in it closes the gap."""
    monkeypatch.setattr(from_kinesis, "AT_ONCE", 1)
    monkeypatch.setattr(chain, "MOST_HELD", 10)
    desk = Desk(*([manifest(lsn, lsn + 1)] for lsn in range(200, 300)))
    desk.run()
    assert [again.shape for again in desk.noted] == ["a", "b"]
    assert desk.noted_at == 11
    assert desk.feed.received_lsn == 300


def test_a_gap_at_the_start_shows_before_the_whole_stream_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else all manifests of a stream would be held back first, which may be days of them."""
    monkeypatch.setattr(from_kinesis, "AT_ONCE", 3)
    calls = [[manifest(lsn + step, lsn + step + 1) for step in range(3)] for lsn in range(200, 290, 3)]
    desk = Desk(*calls, every=timedelta(seconds=31))
    left: list[int] = []
    lost = desk.ledger.lost

    def note_lost(*arguments: Any) -> list[SnapshotAgain]:
        left.append(len(desk.stream.calls))
        return lost(*arguments)

    monkeypatch.setattr(desk.ledger, "lost", note_lost)
    desk.run()
    assert left == [len(calls) - 1]
    assert desk.feed.received_lsn == 290


def test_one_that_is_late_by_less_than_the_patience_is_waited_for_in_old_streams_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(from_kinesis, "AT_ONCE", 2)
    late = [[manifest(100, 110), manifest(120, 130)], [manifest(130, 140), manifest(110, 120)]]
    desk = Desk(*late, every=timedelta(seconds=29))
    desk.run()
    assert desk.noted == []
    assert desk.feed.received_lsn == 140


@pytest.mark.parametrize("leaps", [False, True])
def test_what_was_held_back_is_as_old_as_its_manifest(leaps: bool) -> None:
    """The alarm before retention ends counts from there."""
    hour = timedelta(hours=1)
    first = [] if leaps else [manifest(110, 120), manifest(100, 110)]
    desk = Desk([manifest(120, 130, touched=A), manifest(130, 140, touched=A), *first], every=hour)
    desk.ledger.snapshot_again("b", 0.0)
    if leaps:
        desk.ledger.skip("a", whole(119))
    desk.run()
    assert desk.ledger.backlog.oldest_needed(whole(119)) == NOW + hour
    assert desk.ledger.backlog.oldest_needed(whole(139)) is None


def test_a_timeline_that_the_server_does_not_have_is_an_error() -> None:
    newer = manifest(100, 110)
    newer = Manifest(
        "R", "7", "slot", "0" * 12, newer.since, str(StreamPosition(2, 120)), 0, 0, {}, {},
        [(1, "0/70")],
    )  # fmt: skip
    with pytest.raises(StreamReadError, match="the stream is on timeline 2, and the server on 1"):
        Desk([newer]).run()


def test_what_a_former_primary_wrote_and_the_server_does_not_have_is_left_out() -> None:
    """Also what it had in part: the capture that goes on tells of that again."""
    promoted = History(2, {1: 120})
    former = [manifest(100, 110), manifest(110, 130), manifest(130, 160)]
    again = Manifest(
        "R", "7", "slot", "1" * 12, str(StreamPosition(1, 105)), str(StreamPosition(2, 125)), 0, 0, {}, {},
        [(1, "0/78")],
    )  # fmt: skip
    desk = Desk(former, [again, manifest(160, 170)], history=promoted)
    with capture_logs() as logs:
        desk.run()
    assert desk.noted == []
    assert desk.feed.received_lsn == 125
    assert desk.ledger.backlog.last_seen_txn_offset == whole(124)
    (said,) = [event["detail"] for event in logs if event["event"] == "manifests_left_out"]
    assert "up to 0/82 of timeline 1, which the server, on timeline 2, doesn't have" in said

    desk = Desk([*former, replace(again, since=str(StreamPosition(2, 121)))], history=promoted)
    desk.run()
    assert {again.shape for again in desk.noted} == {"a", "b"}, "a gap"


def test_a_former_primary_that_is_still_captured_does_not_hide_that_nothing_else_comes() -> None:
    former = [manifest(lsn, lsn + 1) for lsn in range(130, 160)]
    desk = Desk([manifest(100, 110)], *([each] for each in former), history=History(2, {1: 120}))
    feed: Any = desk.feed
    feed._came_at -= 100
    begun_at = feed._came_at
    desk.run()
    came_at = feed._came_at
    assert came_at > begun_at + 99
    feed._stream.calls = [[each] for each in former]
    desk.run()
    assert not feed._stream.calls
    assert feed._came_at == came_at


@pytest.mark.parametrize(("cut", "counts"), [(150, False), (205, True)])
def test_a_copy_whose_cut_is_below_a_gap_is_made_again(cut: int, counts: bool) -> None:
    """What follows the cut isn't in the stream."""
    ledger = Desk().ledger
    ledger.snapshot_again("a", 0.0)
    ledger.noted("a")
    ledger.plan.start(0.0)
    ledger.begin_copy("a", 0.0)
    ledger.cut("a", cut)
    assert ("a" in [again.shape for again in ledger.lost(200, "a gap", 1.0)]) is not counts
    assert ledger.snapshotted("a", cut, 2.0) is counts


def test_silence_has_a_sentence() -> None:
    desk = Desk([manifest(100, 110)])
    desk.run()
    feed: Any = desk.feed
    came_at = feed._came_at
    assert feed.stalled(came_at + 9, 10, None) is None
    assert "no manifest has gone beyond 0/6E for 11 s" in feed.stalled(came_at + 11, 10, None)
    feed._came_at += 100
    assert feed.stalled(came_at + 101, 10, None) is None, "manifests come, and nobody waits for more"
    assert feed.stalled(came_at + 101, 10, came_at + 95) is None
    assert feed.stalled(came_at + 106, 10, came_at + 95) is not None

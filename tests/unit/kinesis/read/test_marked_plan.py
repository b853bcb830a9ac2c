"""Offsets of a marked stream: what a batch holds, and what a restart must find again."""

from __future__ import annotations

from typing import cast

import pytest
from msgspec.structs import replace

from penstock.kinesis.marked.manifest import Manifest, encode, partition_key
from penstock.kinesis.read import marked_plan
from penstock.kinesis.read.chain import MOST_HELD, HistoryLost, StreamGap
from penstock.kinesis.read.client import StreamClient
from penstock.kinesis.read.errors import RecordsExpired
from penstock.kinesis.read.manifest_log import ManifestLog, Place
from penstock.kinesis.read.marked_plan import MOST_STEPS, PATIENCE_S, MarkedOffset, MarkedPlan, ReadLimits
from penstock.model.lsn import format_lsn
from penstock.model.stream_position import StreamPosition
from tests.stream_in_memory import StreamInMemory

NO_LIMITS = ReadLimits()
KEY = partition_key("slot")


def at(lsn: int) -> str:
    return str(StreamPosition(1, lsn))


def manifest(since: int, resolved: int, changes: int = 1) -> Manifest:
    return Manifest("R", "7", "slot", "0" * 12, at(since), at(resolved), changes, 100 * changes, {}, {})


class Log:
    """Manifests in one shard, numbered from 1; counts how many were read."""

    def __init__(self, *manifests: Manifest) -> None:
        self.manifests = list(manifests)
        self.trimmed = 0
        self.read = 0

    def fetch(self, after: Place | None) -> list[tuple[Place, Manifest]]:
        first = max(self.trimmed, 0 if after is None else after.sequence)

        def found() -> list[tuple[Place, Manifest]]:
            return [
                (Place("s", number), each)
                for number, each in enumerate(self.manifests[first:], start=first + 1)
            ]

        return _Counted(self, found())


class _Counted(list[tuple[Place, Manifest]]):
    def __init__(self, log: Log, found: list[tuple[Place, Manifest]]) -> None:
        super().__init__(found)
        self._log = log

    def __iter__(self):  # type: ignore[no-untyped-def]
        for each in super().__iter__():
            self._log.read += 1
            yield each


START = MarkedOffset(at(10), None, "7", at(10))


def chain(count: int, changes: int = 1) -> list[Manifest]:
    return [manifest(10 * (place + 1), 10 * (place + 2), changes) for place in range(count)]


def resolved(offset: MarkedOffset) -> int:
    return StreamPosition.parse(offset.resolved).commit_lsn


def test_a_batch_holds_what_the_limits_allow_and_at_least_one_manifest() -> None:
    log = Log(*chain(6, changes=4))
    plan = MarkedPlan(log.fetch, "slot")
    ends, offset = [], START
    for limits in (ReadLimits(changes=9), ReadLimits(size_bytes=1), NO_LIMITS, NO_LIMITS):
        offset = plan.advance(offset, limits, 0.0)
        ends.append(resolved(offset))
    assert ends == [30, 40, 70, 70]


def test_no_more_manifests_are_read_than_a_batch_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(*chain(500))
    plan = MarkedPlan(log.fetch, "slot")
    offset = plan.advance(START, ReadLimits(changes=5), 0.0)
    assert resolved(offset) == 60
    assert log.read < 10
    monkeypatch.setattr(marked_plan, "MOST_STEPS", 20)
    offset = plan.advance(offset, NO_LIMITS, 0.0)
    assert resolved(offset) == 260
    assert log.read < 40


def test_small_batches_read_a_page_of_manifests_once() -> None:
    """All readers of a shard share its 2 MB/s."""
    stream = StreamInMemory()
    for each in chain(10_000):
        stream.put(stream.open_shard_of(KEY), encode(each), KEY)
    log = ManifestLog(cast(StreamClient, stream), "slot")
    plan = MarkedPlan(log.read, "slot")
    offset = START
    for number in range(1, 51):
        start, offset = offset, plan.advance(offset, ReadLimits(changes=10), 0.0)
        assert resolved(offset) == 10 + 100 * number
        assert len(plan.links(start, offset, 0.0)) == 10
        assert not plan.is_at_tip
    assert sum(records for _, _, records in stream.calls) < 2 * 10_000


def test_what_came_since_a_page_was_read_is_found_behind_it() -> None:
    log = Log(*chain(4))
    plan = MarkedPlan(log.fetch, "slot")
    offset = plan.advance(START, ReadLimits(changes=1), 0.0)
    log.manifests += [manifest(50, 60), manifest(60, 70)]
    assert resolved(plan.advance(offset, NO_LIMITS, 0.0)) == 70
    assert plan.is_at_tip
    assert log.read == 6


def test_a_restarted_batch_is_found_again_or_it_is_an_error() -> None:
    """It must never become an empty one because its manifests are gone."""
    log = Log(*chain(6))
    end = MarkedPlan(log.fetch, "slot").advance(START, ReadLimits(changes=4), 0.0)
    assert resolved(end) == 50
    assert [link.start for link in MarkedPlan(log.fetch, "slot").links(START, end, 0.0)] == [
        at(10), at(20), at(30), at(40),
    ]  # fmt: skip
    log.trimmed = 2
    with pytest.raises(StreamGap):
        MarkedPlan(log.fetch, "slot").links(START, end, 0.0)
    log.trimmed = 6
    with pytest.raises(RecordsExpired, match="manifests up to 0/32 of timeline 1 are no longer there"):
        MarkedPlan(log.fetch, "slot").links(START, end, 0.0)


def test_a_gap_is_given_time_unless_there_is_an_end() -> None:
    log = Log(manifest(20, 30))
    plan = MarkedPlan(log.fetch, "slot")
    assert plan.advance(START, NO_LIMITS, 100.0) == START
    assert plan.advance(START, NO_LIMITS, 100.0 + PATIENCE_S - 1) == START
    with pytest.raises(StreamGap, match="up to 0/A of timeline 1, and the next manifest begins at 0/14"):
        plan.advance(START, NO_LIMITS, 100.0 + PATIENCE_S)
    with pytest.raises(StreamGap):
        MarkedPlan(log.fetch, "slot").advance(START, NO_LIMITS, 0.0, up_to=at(30))
    log.manifests.append(manifest(10, 20))
    assert resolved(MarkedPlan(log.fetch, "slot").advance(START, NO_LIMITS, 0.0)) == 30


def test_each_manifest_that_is_missing_is_given_time_of_its_own() -> None:
    log = Log(manifest(20, 30))
    plan = MarkedPlan(log.fetch, "slot")
    assert plan.advance(START, NO_LIMITS, 0.0) == START
    # The first one comes, and another one is missing by then.
    log.manifests += [manifest(10, 20), manifest(40, 50)]
    offset = plan.advance(START, NO_LIMITS, 100.0)
    assert resolved(offset) == 30
    assert plan.advance(offset, NO_LIMITS, 100.0 + PATIENCE_S - 1) == offset
    with pytest.raises(StreamGap, match="up to 0/1E of timeline 1, and the next manifest begins at 0/28"):
        plan.advance(offset, NO_LIMITS, 100.0 + PATIENCE_S)


def test_one_that_came_with_a_full_batch_is_no_longer_missing() -> None:
    """Nobody looks for a gap where a batch is full."""
    log = Log(manifest(20, 30))
    plan = MarkedPlan(log.fetch, "slot")
    assert plan.advance(START, NO_LIMITS, 0.0) == START
    log.manifests.append(manifest(10, 20))
    offset = plan.advance(START, ReadLimits(changes=1), 1.0)
    assert resolved(offset) == 20
    log.manifests.append(manifest(40, 50))
    offset = plan.advance(offset, NO_LIMITS, 100.0)
    assert resolved(offset) == 30
    with pytest.raises(StreamGap):
        plan.advance(offset, NO_LIMITS, 100.0 + PATIENCE_S)


def test_a_gap_is_said_before_all_that_lies_behind_it_is_read() -> None:
    """A query was stopped for longer than retention: what is left has nothing that follows its offset."""
    log = Log(*chain(50_000))
    log.trimmed = 2
    plan = MarkedPlan(log.fetch, "slot")
    for _ in range(2):
        with pytest.raises(StreamGap, match="up to 0/A of timeline 1, and the next manifest begins at 0/1E"):
            plan.advance(START, NO_LIMITS, 0.0)
        assert MOST_HELD < log.read < 2 * MOST_STEPS
    with pytest.raises(StreamGap):
        MarkedPlan(log.fetch, "slot").links(START, START._replace(resolved=at(50)), 0.0)


def test_nothing_lies_beyond_the_end_that_was_asked_for() -> None:
    plan = MarkedPlan(Log(*chain(6)).fetch, "slot")
    assert resolved(plan.advance(START, NO_LIMITS, 0.0, up_to=at(45))) == 40


def of_second_timeline(since: str, resolved: int) -> Manifest:
    history = [(1, format_lsn(35))]
    end = str(StreamPosition(2, resolved))
    return Manifest("R", "7", "slot", "1" * 12, since, end, 1, 100, {}, {}, history)


def test_what_never_happened_is_left_out_as_long_as_it_is_in_no_batch() -> None:
    """A standby was promoted that ended at 35, where the stream already had manifests up to 50."""
    log = Log(*chain(4), of_second_timeline(at(30), 45), of_second_timeline(str(StreamPosition(2, 45)), 60))
    end = MarkedPlan(log.fetch, "slot").advance(START, NO_LIMITS, 0.0)
    assert end.resolved == str(StreamPosition(2, 60))
    plan = MarkedPlan(log.fetch, "slot")
    spans = [(link.start, link.manifest.resolved) for link in plan.links(START, end, 0.0)]
    assert spans == [
        (at(10), at(20)),
        (at(20), at(30)),
        (at(30), str(StreamPosition(2, 45))),
        (str(StreamPosition(2, 45)), str(StreamPosition(2, 60))),
    ]
    # In a batch it counts as applied, whether that was read or not.
    handed_out = MarkedPlan(Log(*log.manifests[:4]).fetch, "slot").advance(START, NO_LIMITS, 0.0)
    assert handed_out.resolved == at(50)
    plan = MarkedPlan(log.fetch, "slot")
    for _ in range(2):
        with pytest.raises(HistoryLost, match="0/32 of timeline 1 never happened"):
            plan.advance(handed_out, NO_LIMITS, 0.0)
    again = MarkedPlan(log.fetch, "slot").links(START, handed_out, 0.0)
    assert [link.manifest.resolved for link in again] == [at(20), at(30), at(40), at(50)]


def of_promoted(since: str, resolved: StreamPosition) -> Manifest:
    return replace(of_second_timeline(since, 0), resolved=str(resolved))


def test_what_the_lost_ones_had_covered_is_needed_when_they_are_left_out() -> None:
    """The second timeline begins at 35. Its first manifest says nothing new beside a lost one."""
    lost = manifest(20, 60)
    first, second = of_promoted(at(20), StreamPosition(1, 34)), of_second_timeline(at(34), 50)
    log = Log(manifest(10, 20), lost, first, second)
    plan = MarkedPlan(log.fetch, "slot")
    end = plan.advance(START, NO_LIMITS, 0.0, up_to=str(StreamPosition(9, 0)))
    assert end.resolved == second.resolved
    for each in (plan, MarkedPlan(log.fetch, "slot")):
        spans = [(link.start, link.manifest.resolved) for link in each.links(START, end, 0.0)]
        assert spans == [(at(10), at(20)), (at(20), at(34)), (at(34), second.resolved)]


def test_what_was_read_ahead_of_an_earlier_batch_is_found_again() -> None:
    lost, first = manifest(20, 60), of_promoted(at(20), StreamPosition(1, 34))
    log = Log(manifest(10, 20), lost, first)
    plan = MarkedPlan(log.fetch, "slot")
    assert resolved(plan.advance(START, NO_LIMITS, 0.0)) == 60
    offset = plan.advance(START, ReadLimits(changes=1), 0.0)
    assert resolved(offset) == 20
    assert resolved(plan.advance(offset, NO_LIMITS, 0.0)) == 60
    log.manifests.append(of_second_timeline(at(34), 50))
    assert plan.advance(offset, NO_LIMITS, 0.0).resolved == str(StreamPosition(2, 50))


def test_what_comes_of_a_lost_history_when_another_one_is_known_is_left_out() -> None:
    """One of the second timeline is held back; the first one's leader goes on for a while."""
    held, between = of_second_timeline(at(34), 60), of_promoted(at(30), StreamPosition(1, 34))
    log = Log(*chain(2), held, manifest(30, 50), between)
    end = MarkedPlan(log.fetch, "slot").advance(START, NO_LIMITS, 0.0)
    assert end.resolved == held.resolved
    spans = [link.manifest.resolved for link in MarkedPlan(log.fetch, "slot").links(START, end, 0.0)]
    assert spans == [at(20), at(30), between.resolved, held.resolved]


def test_a_batch_of_a_lost_history_never_gets_the_changes_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its manifests are gone, and those of the second timeline reach further: they tell of other changes."""
    log = Log(manifest(10, 20), manifest(20, 50))
    end = MarkedPlan(log.fetch, "slot").advance(START, NO_LIMITS, 0.0)
    assert end.resolved == at(50)
    log.manifests.append(of_second_timeline(at(10), 60))
    assert len(MarkedPlan(log.fetch, "slot").links(START, end, 0.0)) == 2
    log.trimmed = 2
    with pytest.raises(RecordsExpired, match="manifests up to 0/32 of timeline 1 are no longer there"):
        MarkedPlan(log.fetch, "slot").links(START, end, 0.0)
    # Nor is a whole stream read for it.
    monkeypatch.setattr(marked_plan, "MOST_STEPS", 20)
    log.manifests += [of_second_timeline(str(StreamPosition(2, 60 + more)), 61 + more) for more in range(500)]
    log.read = 0
    with pytest.raises(RecordsExpired):
        MarkedPlan(log.fetch, "slot").links(START, end, 0.0)
    assert log.read < 30


def test_a_batch_that_both_histories_have_may_come_from_either() -> None:
    log = Log(manifest(10, 20), manifest(20, 30))
    end = MarkedPlan(log.fetch, "slot").advance(START, NO_LIMITS, 0.0)
    log.manifests.append(of_second_timeline(at(10), 60))
    log.trimmed = 2
    (link,) = MarkedPlan(log.fetch, "slot").links(START, end, 0.0)
    assert link.manifest.resolved == str(StreamPosition(2, 60))

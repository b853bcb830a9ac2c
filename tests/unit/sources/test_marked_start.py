"""A query that names where it begins: it has everything from there on, or an error names what is there."""

from __future__ import annotations

from datetime import timedelta
from typing import cast

import pytest

from penstock.kinesis.marked.manifest import ACTION, Manifest, encode, partition_key
from penstock.kinesis.read.chain import HistoryLost, StreamGap
from penstock.kinesis.read.client import StreamClient
from penstock.kinesis.read.errors import StreamReadError
from penstock.kinesis.read.manifest_log import ManifestLog
from penstock.kinesis.read.marked_plan import MarkedPlan, ReadLimits
from penstock.model.lsn import format_lsn
from penstock.model.stream_position import StreamPosition
from penstock.sources.marked_start import begin_at, parse_start
from tests.stream_in_memory import StreamInMemory

KEY = partition_key("etl")
Ends = tuple[int, int]


def at(lsn: int, timeline: int = 1) -> str:
    return str(StreamPosition(timeline, lsn))


class Written:
    """A stream of manifests; a minute lies between two."""

    def __init__(self) -> None:
        self.stream = StreamInMemory()
        self.log = ManifestLog(cast(StreamClient, self.stream), "etl")

    def put(self, *ends: Ends, system: str = "7", by: str = "a", switch: int | None = None) -> None:
        """With `switch`, of the second timeline, where the first was left."""
        for since, resolved in ends:
            is_old = switch is None or since <= switch
            manifest = Manifest(
                ACTION,
                system,
                "etl",
                by,
                at(since, 1 if is_old else 2),
                at(resolved, 1 if switch is None else 2),
                0,
                0,
                {},
                {},
                [] if switch is None else [(1, format_lsn(switch))],
            )
            self.stream.put(self.stream.open_shard_of(KEY), encode(manifest), KEY)
            self.stream.pass_time(timedelta(minutes=1))

    def read(self, start: str) -> tuple[str, str]:
        """Where a new reader begins, and how far it comes."""
        offset = begin_at(self.log, parse_start(start))
        assert offset is not None
        plan = MarkedPlan(self.log.read, "etl")
        # By small steps: nothing is read ahead that a batch doesn't have.
        while (end := plan.advance(offset, ReadLimits(changes=0), 0.0, up_to=at(10**9, 9))) != offset:
            offset = end
        return offset.begins, offset.resolved


@pytest.fixture
def written() -> Written:
    return Written()


@pytest.mark.parametrize("start", [at(50), "0/32"])
def test_a_new_query_begins_behind_a_gap(written: Written, start: str) -> None:
    written.put((10, 20), (20, 30), (50, 60), (60, 70))
    with pytest.raises(StreamGap):
        written.read(at(10))
    assert written.read(start) == (at(50), at(70))


@pytest.mark.parametrize(("lsn", "there"), [(5, 10), (30, 50), (49, 50)])
def test_a_position_that_no_manifest_holds_is_refused(written: Written, lsn: int, there: int) -> None:
    written.put((10, 20), (20, 30), (50, 60), (60, 70))
    with pytest.raises(StreamReadError, match=f"startingPosition {at(there)}$"):
        written.read(at(lsn))


@pytest.mark.parametrize("minutes", [0, 1, 10, 200, 1000])
@pytest.mark.parametrize("lsn", [0, 5, 10, 13, 28])
def test_it_begins_there_and_nowhere_else(written: Written, lsn: int, minutes: int) -> None:
    """In the middle of a manifest too: a snapshot was taken there."""
    written.put(*((each, each + 10) for each in range(0, 30, 10)))
    written.stream.pass_time(timedelta(minutes=minutes))
    assert written.read(at(lsn)) == (at(lsn), at(30))


def test_it_begins_behind_another_system(written: Written) -> None:
    written.put((1000, 1010), (1010, 1020))
    old = begin_at(written.log, at(1000))
    assert old is not None
    written.put((40, 50), (50, 60), system="8")
    with pytest.raises(StreamReadError, match="system 8"):
        MarkedPlan(written.log.read, "etl").advance(old, ReadLimits(), 0.0)
    assert written.read(at(40)) == (at(40), at(60))
    assert written.read(at(55)) == (at(55), at(60))


def test_it_begins_behind_a_lost_history(written: Written) -> None:
    """A standby was promoted at 25 that had not what was published up to 40."""
    written.put((10, 20), (20, 30), (30, 40))
    written.put((24, 45), (45, 60), by="b", switch=25)
    plan = MarkedPlan(written.log.read, "etl")
    offset = begin_at(written.log, at(10))
    assert offset is not None
    with pytest.raises(HistoryLost):
        plan.advance(offset._replace(resolved=at(40), place=None), ReadLimits(), 0.0)
    assert written.read(at(24)) == (at(24), at(60, 2))
    assert written.read("0/18") == (at(24), at(60, 2))
    assert written.read("0/1A") == (at(26, 2), at(60, 2))
    with pytest.raises(StreamReadError, match="never happened"):
        written.read(at(33))


def test_what_was_carried_out_late_is_no_place_to_begin(written: Written) -> None:
    """The last word of a leader that slept holds the position; those that follow stand before it."""
    written.put((50, 55), (55, 65), by="b")
    written.stream.pass_time(timedelta(minutes=10))
    written.put((50, 60), by="slept")
    written.put((65, 75), (75, 85), by="b")
    assert written.read(at(52)) == (at(52), at(85))


def test_a_position_that_is_to_come_is_waited_for(written: Written) -> None:
    assert begin_at(written.log, at(30)) is None
    written.put((10, 20), (20, 30))
    offset = begin_at(written.log, at(35))
    assert offset is not None
    plan = MarkedPlan(written.log.read, "etl")
    assert plan.advance(offset, ReadLimits(), 0.0) == offset
    written.put((30, 40))
    (link,) = plan.links(offset, plan.advance(offset, ReadLimits(), 1.0), 1.0)
    assert (link.start, link.manifest.resolved) == (at(35), at(40))

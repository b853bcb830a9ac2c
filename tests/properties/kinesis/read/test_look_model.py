"""Batches of a stream against a list of all that was ever put: every record once, parents before children."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.kinesis.read import reach
from penstock.kinesis.read.look import Look
from penstock.kinesis.read.reach import UNLIMITED, Limit
from penstock.kinesis.read.shard_ranges import read_range
from penstock.kinesis.read.shards import parents_first
from penstock.kinesis.read.stream_offset import Starting, StreamOffset
from penstock.kinesis.read.watch import watch
from tests.stream_in_memory import RETENTION, StreamInMemory

LIMITS = st.sampled_from(
    [UNLIMITED, Limit(records=2), Limit(size_bytes=5), Limit(seconds=5), Limit(records=3, seconds=60)]
)
SOME_TIME = st.sampled_from(
    [timedelta(0), timedelta(seconds=0.3), timedelta(seconds=4), timedelta(minutes=9)]
)


class ReadMachine(RuleBasedStateMachine):
    """Shards split and merge, records expire, and the reader begins again at any moment."""

    def __init__(self) -> None:
        super().__init__()
        # A few records are many then, and have to be jumped over.
        self.small_glances = patch.object(reach, "_GLANCE_RECORDS", 2)
        self.small_glances.start()
        self.stream = StreamInMemory(2)
        self.put_in: dict[int, str] = {}
        """The shard of each record; its numbers grow with each record put."""
        self.read: list[int] = []
        self.oldest_read = self.stream.now
        """When the oldest of the records arrived up to which shards were read."""
        self.is_lost = False
        self.ceiling: StreamOffset | None = None

    @initialize(kind=st.sampled_from(["LATEST", "TRIM_HORIZON", "AT_TIMESTAMP"]), before=st.integers(0, 3))
    def begin(self, kind: str, before: int) -> None:
        old = [self._put(shard, 1) for shard in self.stream.open_shards() for _ in range(before)]
        self.stream.pass_time(timedelta(seconds=10))
        starting = Starting(kind, self.stream.now - timedelta(seconds=5) if kind == "AT_TIMESTAMP" else None)
        self.offset = starting.offset("s", self.stream.shards(), self.stream.now)
        if kind != "TRIM_HORIZON":
            for sequence in old:
                del self.put_in[sequence]

    @rule(data=st.data(), records=st.integers(1, 5), size=st.integers(1, 6), pause=SOME_TIME)
    def put(self, data: st.DataObject, records: int, size: int, pause: timedelta) -> None:
        for _ in range(records):
            self._put(data.draw(st.sampled_from(self.stream.open_shards())), size)
            self._pass_time(pause)

    @precondition(lambda self: len(self.stream.open_shards()) < 5)
    @rule(data=st.data())
    def split(self, data: st.DataObject) -> None:
        self.stream.split(data.draw(st.sampled_from(self.stream.open_shards())))

    @precondition(lambda self: len(self.stream.open_shards()) > 1)
    @rule(data=st.data())
    def merge(self, data: st.DataObject) -> None:
        by_range = sorted(self.stream.open_shards(), key=lambda name: self.stream.held[name].info.low)
        place = data.draw(st.integers(0, len(by_range) - 2))
        self.stream.merge(by_range[place], by_range[place + 1])

    @rule(empty=st.integers(0, 2))
    def pages_may_be_empty(self, empty: int) -> None:
        self.stream.empty_pages = empty
        self.stream.tip_is_now = empty == 1

    @precondition(lambda self: not self.is_lost)
    @rule(hours=st.sampled_from([1, 6, 12, 22, 25]))
    def time_passes(self, hours: int) -> None:
        self._pass_time(timedelta(hours=hours))

    @precondition(lambda self: not self.is_lost)
    @rule(limit=LIMITS, is_retried=st.booleans())
    def batch(self, limit: Limit, is_retried: bool) -> None:
        end = self._look(limit)
        if end is not self.offset:
            self._read_batch(end, is_retried)

    @precondition(lambda self: not self.is_lost)
    @rule(limit=LIMITS)
    def all_that_is_there(self, limit: Limit) -> None:
        there = {sequence for sequence in self.put_in if sequence not in self.read}
        self.ceiling = self._look(UNLIMITED, to_tip=True)
        some = self.stream.open_shards()[0]
        self._put(some, 1)
        if len(self.stream.open_shards()) < 5:
            self.stream.split(some)
        while (end := self._look(limit)) is not self.offset:
            self._read_batch(end, is_retried=False)
        self.ceiling = None
        assert there <= set(self.read)
        assert len(set(self.read)) == len(self.put_in) - 1

    @precondition(lambda self: self.is_lost)
    @rule()
    def a_loss_is_told(self) -> None:
        look = Look(self.offset, self.stream.shards(), self.stream.now)
        end = watch(self.stream, look, UNLIMITED, to_tip=True)
        assert look.losses
        # Who goes on in spite of it, goes on with all that is left.
        left = {record.sequence for shard in self.stream.held.values() for record in shard.records}
        self.put_in = {
            sequence: at for sequence, at in self.put_in.items() if sequence in self.read or sequence in left
        }
        self.is_lost = False
        self._read_batch(end, is_retried=False)

    @invariant()
    def every_record_is_read_once_and_in_order(self) -> None:
        assert len(self.read) == len(set(self.read))
        assert set(self.read) <= self.put_in.keys()
        for shard_id in set(self.put_in.values()):
            own = [sequence for sequence in self.read if self.put_in[sequence] == shard_id]
            assert own == sorted(own)

    def teardown(self) -> None:
        try:
            if not self.is_lost:
                self._read_the_rest()
        finally:
            self.small_glances.stop()

    def _read_the_rest(self) -> None:
        end = self._look(UNLIMITED, to_tip=True)
        self._read_batch(end, is_retried=False)
        assert set(self.read) == self.put_in.keys()
        assert self._look(UNLIMITED) is self.offset, "nothing is left"

    def _put(self, shard_id: str, size: int) -> int:
        sequence = self.stream.put(shard_id, b"x" * size)
        self.put_in[sequence] = shard_id
        return sequence

    def _pass_time(self, by: timedelta) -> None:
        self.stream.pass_time(by)
        unread = self.put_in.keys() - set(self.read)
        left = {record.sequence for shard in self.stream.held.values() for record in shard.records}
        self.is_lost = bool(unread - left)

    def _look(self, limit: Limit, *, to_tip: bool = False) -> StreamOffset:
        """Where the next batch ends.

        A reader that was away for long, or far behind, may not know whether it missed something: it says so.
        """
        look = Look(self.offset, self.stream.shards(), self.stream.now, self.ceiling)
        end = watch(self.stream, look, limit, to_tip=to_tip)
        if look.losses:
            horizon = self.stream.now - RETENTION
            is_old = self.offset.looked_at <= horizon + timedelta(hours=1)
            assert is_old or self.oldest_read <= horizon, look.losses
        return end

    def _read_batch(self, end: StreamOffset, is_retried: bool) -> None:
        # Spark keeps JSON, and whoever begins again has nothing else.
        end = StreamOffset.parse(end.to_json(), "s") or end
        records = self._records(end)
        self._parents_first(records)
        if is_retried:
            for shard_id in self.stream.open_shards():
                self._put(shard_id, 1)
            assert self._records(end) == records, "the same batch has the same records"
        self.read += records
        self.offset = end
        lasts = [position.after for position in end.shards.values() if not position.is_finished]
        self.oldest_read = min(
            (
                record.arrived
                for shard in self.stream.held.values()
                for record in shard.records
                if record.sequence in lasts
            ),
            default=self.stream.now,
        )

    def _records(self, end: StreamOffset) -> list[int]:
        order = [shard.shard_id for shard in parents_first(self.stream.shards())]
        ranges = sorted(end.ranges(), key=lambda part: order.index(part.shard_id))
        return [
            record.sequence
            for part in ranges
            for page in read_range(self.stream, part, _unexpected)
            for record in page
        ]

    def _parents_first(self, records: Sequence[int]) -> None:
        """No record of a child comes before the last one of its parents."""
        begun = {self.put_in[sequence] for sequence in records}
        read = {*self.read, *records}
        for shard_id in begun:
            for parent in self.stream.held[shard_id].info.parents:
                left = self.stream.held[parent].records if parent in self.stream.held else []
                assert {record.sequence for record in left} & self.put_in.keys() <= read


def _unexpected(loss: str) -> None:
    raise AssertionError(loss)


TestReading = ReadMachine.TestCase
TestReading.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)

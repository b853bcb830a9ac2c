"""A marked stream from end to end: no reader applies half a transaction, misses one, or sees one twice.

What was committed is the oracle. Leaders are built from capture's own pure parts and stop between any two of
their effects; several are alive at once, and what one of them has sent may be carried out when it is long
gone. The stream delays, repeats, splits and merges; servers fail over, and may lose the tail of their log.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from penstock.demo.stream_reader import StreamBroken
from penstock.kinesis.marked.manifest import decode
from penstock.kinesis.read.errors import StreamReadError
from penstock.kinesis.read.marked_plan import ReadLimits
from penstock.model.stream_position import History, StreamPosition
from tests.conftest import LONG_TESTS
from tests.marked_history.delayed_stream import DelayedStream
from tests.marked_history.leader import REFUSED, THROTTLED, Failing, Leader, Put, Sizes
from tests.marked_history.readers import ChainReader, PlainReader, Reader
from tests.marked_history.server import START_LSN, Row, Server

TABLES = ("orders", "baskets", "visits")
SIZES = st.sampled_from([Sizes(), Sizes(2, 3, spans=2, overtaking=2), Sizes(3, 3, spans=1), Sizes(50, 1)])
ROWS = st.one_of(
    st.lists(st.tuples(st.sampled_from(TABLES), st.integers(0, 5)), max_size=4),
    # Large ones: several requests, which may be answered in any order.
    st.builds(lambda count: [(TABLES[at % 3], at % 11) for at in range(count)], st.integers(10, 30)),
)


def throttled(which: int) -> Failing:
    return lambda place: THROTTLED if place % 3 == which else None


def refused(which: int) -> Failing:
    return lambda place: REFUSED if place == which else None


class Round(NamedTuple):
    """What a leader does in a row, and where it stops; whatever is left may happen later, or never."""

    effects: int
    """So many: frames, request, its arrival, its answer, manifest, its arrival, its answer, feedback."""
    frames: int
    failing: Failing | None
    is_early: bool
    is_heard: bool
    mark_fails: bool
    mark_is_early: bool
    mark_is_heard: bool


ALL = 8
MOSTLY = st.sampled_from([True, True, True, False])
SELDOM = st.sampled_from([False, False, False, True])
ROUNDS = st.builds(
    Round,
    effects=st.one_of(st.just(ALL), st.integers(1, ALL)),
    frames=st.sampled_from([1, 4, 1_000, 1_000]),
    failing=st.sampled_from([None, None, None, throttled(0), throttled(1), refused(0), refused(2)]),
    is_early=SELDOM,
    is_heard=MOSTLY,
    mark_fails=SELDOM,
    mark_is_early=st.booleans(),
    mark_is_heard=MOSTLY,
)


class MarkedHistory(RuleBasedStateMachine):
    """Runs in which retention takes nothing: errors are those of a history that was lost, and no others."""

    @initialize(own_marks=st.booleans(), shards=st.integers(1, 4), empty=st.integers(0, 1))
    def begin(self, own_marks: bool, shards: int, empty: int) -> None:
        self.stream = DelayedStream(shards)
        self.marks = DelayedStream(1) if own_marks else self.stream
        self.stream.empty_pages = self.marks.empty_pages = empty
        self.servers = {1: Server(History(1, {}), [], START_LSN)}
        self.leaders: list[Leader] = []
        self.wire: list[Put] = []
        """All that was ever sent."""
        self.serials = itertools.count()
        self.senders = itertools.count(1)
        self.clock = 0.0
        start = str(StreamPosition(1, START_LSN))
        self.readers: list[Reader] = [
            PlainReader(self.stream, self.marks, start),
            ChainReader(self.stream, self.marks, start, limits=ReadLimits(changes=3), joins=False),
            ChainReader(self.stream, self.marks, start, limits=ReadLimits(), joins=True),
        ]

    @property
    def server(self) -> Server:
        return self.servers[max(self.servers)]

    @rule(data=st.data(), commits=st.lists(ROWS, max_size=3), rounds=st.lists(ROUNDS, max_size=4))
    def work(
        self, data: st.DataObject, commits: list[list[tuple[str, int]]], rounds: Sequence[Round]
    ) -> None:
        """A server that was left may go on for a while, and its leader too: nobody will ever know."""
        if not self.leaders:
            self.lead(Sizes())
        leader = data.draw(st.sampled_from([self.leaders[-1], *self.leaders]))
        for rows in commits:
            self._commit(leader.server, rows, pause=len(rows) % 2)
        for each in rounds:
            self._round(leader, each)

    @rule(pause=st.integers(0, 5))
    def nothing_happens(self, pause: int) -> None:
        self.server.rest(pause)

    @precondition(lambda self: len(self.leaders) < 3)
    @rule(sizes=SIZES)
    def lead(self, sizes: Sizes) -> None:
        """The one before may be frozen, or not know yet."""
        for leader in self.leaders:
            if leader.server is self.server:
                leader.lose_line()
        by = f"{next(self.senders):012x}"
        self.leaders.append(Leader(self.server, by, self.stream, self.marks, sizes))

    @precondition(lambda self: self.leaders)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        self.leaders.remove(data.draw(st.sampled_from(self.leaders)))

    @precondition(lambda self: self.wire)
    @rule(data=st.data(), early=st.booleans())
    def something_is_carried_out_late_or_again(self, data: st.DataObject, early: bool) -> None:
        data.draw(st.sampled_from(self.wire)).carry_out(early=early)

    @precondition(lambda self: len(self.stream.open_shards()) < 6)
    @rule(data=st.data())
    def split(self, data: st.DataObject) -> None:
        stream = data.draw(st.sampled_from([self.stream, self.marks]))
        stream.split(data.draw(st.sampled_from(stream.open_shards())))

    @precondition(lambda self: len(self.stream.open_shards()) > 1)
    @rule(data=st.data())
    def merge(self, data: st.DataObject) -> None:
        by_range = sorted(self.stream.open_shards(), key=lambda name: self.stream.held[name].info.low)
        place = data.draw(st.integers(0, len(by_range) - 2))
        self.stream.merge(by_range[place], by_range[place + 1])

    @precondition(lambda self: len(self.servers) < 3)
    @rule(data=st.data())
    def promote(self, data: st.DataObject) -> None:
        """A standby becomes the primary; the slot that it has may be an older one."""
        old = self.server
        switch = data.draw(st.sampled_from([lsn for lsn in old.boundaries if lsn >= old.begins_at]))
        confirmed = data.draw(st.sampled_from([lsn for lsn in old.told if lsn <= switch] or [old.told[0]]))
        new = old.promoted(switch, confirmed)
        self.servers[new.history.timeline] = new

    @rule(
        shown=st.sampled_from([0, 1, 3, None]),
        which=st.lists(st.integers(0, 2), min_size=1, max_size=5),
        dies=SELDOM,
        restart=st.integers(0, 20),
    )
    def poll(self, shown: int | None, which: list[int], dies: bool, restart: int) -> None:
        self._show(shown)
        for number in which:
            self.clock += 0.1
            self._poll(self.readers[number], dies, restart)

    def teardown(self) -> None:
        if not hasattr(self, "servers"):
            return
        self._finish()

    def _show(self, count: int | None) -> None:
        """So many records more can be read in each shard."""
        for stream in (self.stream, self.marks):
            for shard in stream.held:
                stream.show(shard, count)

    def _commit(self, server: Server, rows: Sequence[tuple[str, int]], *, pause: int) -> None:
        server.commit([Row(table, key, next(self.serials)) for table, key in rows], pause=pause)

    def _round(self, leader: Leader, each: Round) -> None:
        steps: list[Callable[[], None]] = [
            lambda: leader.take(each.frames),
            lambda: self._send(leader),
            lambda: self._arrive(leader, each),
            lambda: self._answer(leader, each),
            lambda: self._mark(leader),
            lambda: self._arrive_mark(leader, each),
            lambda: self._answer_mark(leader, each),
            leader.tell,
        ]
        for step in steps[: each.effects]:
            step()

    def _send(self, leader: Leader) -> None:
        while (put := leader.send()) is not None:
            self.wire.append(put)

    def _arrive(self, leader: Leader, each: Round) -> None:
        for put in [put for put in reversed(leader.puts) if put.entries is None]:
            put.carry_out(each.failing, early=each.is_early)

    def _answer(self, leader: Leader, each: Round) -> None:
        for put in list(reversed(leader.puts)):
            if put.entries is not None and each.is_heard:
                leader.hear(put)
            elif not each.is_heard:
                leader.give_up(put)

    def _mark(self, leader: Leader) -> None:
        if leader.mark_put is None:
            self.wire.append(leader.mark())

    def _arrive_mark(self, leader: Leader, each: Round) -> None:
        put = leader.mark_put
        if put is not None and put.entries is None:
            put.carry_out((lambda _place: THROTTLED) if each.mark_fails else None, early=each.mark_is_early)

    def _answer_mark(self, leader: Leader, each: Round) -> None:
        put = leader.mark_put
        if put is not None and not each.mark_is_heard:
            leader.give_up_mark()
        elif put is not None and put.entries is not None:
            leader.hear_mark()

    def _poll(self, reader: Reader, dies: bool, restart: int) -> bool:
        try:
            is_new = reader.poll(self.clock, dies=dies)
        except (StreamReadError, StreamBroken) as error:
            if not self._is_lost(reader) and not self._is_trimmed(reader):
                raise AssertionError(f"nothing is missing for a reader at {reader.applied}") from error
            reader.begin_at(self._snapshot(restart))
            return True
        self._check(reader)
        return is_new

    def _snapshot(self, back: int) -> str:
        """One of any moment since this server is the primary."""
        if self.server.end_lsn <= self.server.begins_at:
            self.server.rest(1)
        cuts = [lsn for lsn in self.server.boundaries if lsn > self.server.begins_at]
        return str(self.server.history.boundary(cuts[-1 - back % len(cuts)]))

    def _check(self, reader: Reader) -> None:
        """Whole transactions, each once, in order: all that were committed below what counts as applied."""
        if reader.applied is None or reader.base is None:
            assert not reader.transactions
            return
        server = self.servers[StreamPosition.parse(reader.applied).timeline]
        assert reader.transactions == server.told_between(reader.base, reader.applied)

    def _is_lost(self, reader: Reader) -> bool:
        """Whether what it has applied never happened for a later server."""
        at = StreamPosition.parse(reader.applied or reader.base or str(StreamPosition(1, START_LSN)))
        return any(
            number > at.timeline and not server.history.has(at) for number, server in self.servers.items()
        )

    def _is_trimmed(self, reader: Reader) -> bool:
        """Whether retention has taken something that it still needed: a manifest, or part of a range."""
        applied = reader.applied or ""
        for put in self.wire:
            if put.request is not None or put.places == set():
                continue
            said = decode(put.records[0][1])
            if said.resolved > applied and (
                put.places & self.marks.trimmed
                or any(
                    name in said.shards
                    and int(said.shards[name].first) <= number <= int(said.shards[name].last)
                    for name, number in self.stream.trimmed
                )
            ):
                return True
        return False

    def _finish(self) -> None:
        self._show(None)
        self.leaders.clear()
        self._commit(self.server, [("orders", 1)], pause=1)
        self.lead(Sizes())
        self.wire.append(self.leaders[-1].flow())
        self._show(None)
        for reader in self.readers:
            # What lies behind a gap would have been waited for long enough.
            silence = polls = 0
            while silence < 2:
                self.clock += 100.0
                silence = 0 if self._poll(reader, dies=False, restart=1) else silence + 1
                polls += 1
                assert polls < 1_000, "it gets on"
            assert reader.applied == str(self.server.history.boundary(self.server.end_lsn))


class Trimmed(MarkedHistory):
    """Retention passes what nobody has read: that is an error for those who needed it, and never a hole."""

    @rule(share=st.sampled_from([0.1, 0.5, 0.9]), own=st.booleans())
    def trim(self, share: float, own: bool) -> None:
        self._show(None)
        (self.marks if own else self.stream).trim(share)

    @rule(which=st.integers(0, 2))
    def begin_with_what_is_there(self, which: int) -> None:
        self.readers[which].begin_at(None)


IS_LONG = os.environ.get(LONG_TESTS) == "1"
TestMarkedHistory = MarkedHistory.TestCase
TestMarkedHistory.settings = settings(
    max_examples=1_000 if IS_LONG else 120, stateful_step_count=60 if IS_LONG else 30, deadline=None
)
TestTrimmed = Trimmed.TestCase
TestTrimmed.settings = settings(TestMarkedHistory.settings, max_examples=400 if IS_LONG else 40)

"""A shape that is parked, pinned, copied and let go again, against a server that knows every transaction."""

from __future__ import annotations

from typing import NamedTuple, cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.changelog.log import ChangeLog
from penstock.decoding.wal2json import Wal2Json
from penstock.model.log_offset import LogOffset
from penstock.model.relation import Relation
from penstock.model.snapshot_again import SnapshotAgain
from penstock.postgres.catalog.table_tree import Member, Tree
from penstock.postgres.stream.walk import FrameWalk
from penstock.shapes.feed.collector import Append, Collector, Committed, Silence
from penstock.shapes.feed.ledger import Ledger
from penstock.shapes.pace.flush_plan import FlushPlan
from penstock.shapes.pace.flush_tracker import FlushTracker
from penstock.shapes.pace.held import Held, whole
from penstock.shapes.pace.shape_plan import Job, JobStart

TABLES = {"a": Relation("public", "a"), "other": Relation("public", "other")}
START = 100


class Transaction(NamedTuple):
    """One that the server has committed."""

    lsn: int
    touched: frozenset[str]


class FakeLog:
    """Knows which transactions it still has."""

    def __init__(self) -> None:
        self.rows: list[tuple[Relation, int]] = []

    def append(self, relation: Relation, tx_offset: int, _op_offset: int, _payload: bytes) -> None:
        self.rows.append((relation, tx_offset))

    def commit(self, _tx_offset: int) -> None:
        pass

    def trim(self, offset: LogOffset) -> None:
        self.rows = [row for row in self.rows if LogOffset(row[1], 0) > offset]


class CopyMachine(RuleBasedStateMachine):
    """`a` is snapshotted again and again, `other` is always flushed at once."""

    def __init__(self) -> None:
        super().__init__()
        self.wal: list[Transaction] = []
        self.wal_end = START
        self.received = 0
        self.log = FakeLog()
        held = Held()
        self.ledger = Ledger(
            held=held,
            collector=Collector(
                walk=FrameWalk(Wal2Json(), confirmed_lsn=START, needs_lsn=True),
                shapes=TABLES,
                trees=[Tree(Member(table, 1, 1, "x")) for table in TABLES.values()],
                held=held,
            ),
            log=cast(ChangeLog, self.log),
            tracker=FlushTracker(initial_lsn=START),
            plan=FlushPlan(held=held),
        )
        for shape in TABLES:
            self.ledger.add(shape, interval_s=0.0, held=whole(START - 1), now=0.0)
        self.holds = START
        """Everything below this is in the table of `a`."""
        self.counts = True
        """Whether no snapshot of it was asked for."""
        self.is_noted = True
        """Whether the registry has heard of the last one."""
        self.is_registered = True
        """Whether the table counts after a crash."""
        self.attempt: str | None = None
        """How far a snapshot is that runs."""
        self.cut = 0

    @rule(touched=st.sets(st.sampled_from(sorted(TABLES))), gap=st.integers(1, 3))
    def commit(self, touched: set[str], gap: int) -> None:
        self.wal.append(Transaction(self.wal_end + gap, frozenset(touched)))
        self.wal_end += gap + 4

    @rule(most=st.integers(1, 5))
    def receive(self, most: int) -> None:
        """The stream is behind the server, and `other` is always up."""
        for lsn, touched in self.wal[self.received : self.received + most]:
            appends = [Append(TABLES[shape], lsn, 0, b"{}") for shape in sorted(touched)]
            self.ledger.carry_out([*appends, Committed(LogOffset(lsn, 0), lsn + 4, touched)], 0.0)
            self.received += 1
        if self.received == len(self.wal):
            self.ledger.carry_out([Silence(self.wal_end)], 0.0)
        if JobStart("other", Job.FLUSH) in self.started():
            self.ledger.flushed("other", self.wal[self.received - 1].lsn, 0.0)

    def started(self) -> list[JobStart]:
        starts = self.ledger.plan.start(0.0)
        if JobStart("a", Job.SNAPSHOT) in starts:
            self.attempt = "waits"
        elif JobStart("a", Job.FLUSH) in starts:
            self.flush()
        return starts

    def flush(self) -> None:
        """All of it that was received."""
        newest = [each.lsn for each in self.wal[: self.received] if "a" in each.touched][-1]
        self.holds = max(self.holds, newest + 1)
        self.ledger.flushed("a", self.holds - 1, 0.0)

    @precondition(lambda self: self.counts or self.attempt is not None)
    @rule()
    def ask_for_a_snapshot(self) -> None:
        self.counts = self.is_noted = False
        self.ledger.carry_out([SnapshotAgain("a", "asked for")], 0.0)
        self.started()

    @precondition(lambda self: not self.is_noted)
    @rule()
    def note(self) -> None:
        self.is_noted, self.is_registered = True, False
        self.ledger.noted("a")

    @precondition(lambda self: self.attempt == "waits")
    @rule()
    def pin(self) -> None:
        """And ask the server for a slot, which writes to the WAL first."""
        self.ledger.plan.copying("a", 0.0)
        self.ledger.begin_copy("a", 0.0)
        self.wal_end += 1
        self.cut, self.attempt = self.wal_end, "pinned"

    @precondition(lambda self: self.attempt == "pinned")
    @rule(later=st.booleans())
    def get_the_cut(self, later: bool) -> None:
        """At once, or after transactions that were open then."""
        self.cut = self.wal_end if later else self.cut
        self.ledger.cut("a", self.cut)
        self.attempt = "copies"

    @precondition(lambda self: self.attempt == "pinned")
    @rule()
    def give_up(self) -> None:
        self.ledger.end_copy("a")
        self.attempt = "waits"

    @precondition(lambda self: self.attempt is not None)
    @rule()
    def fail(self) -> None:
        self.ledger.failed("a", "no room", -1e6)
        self.attempt = None
        self.started()

    @precondition(lambda self: self.attempt == "copies" and self.is_noted)
    @rule()
    def copy(self) -> None:
        self.counts = self.ledger.snapshotted("a", self.cut, 0.0)
        self.attempt = None
        if self.counts:
            self.holds, self.is_registered = self.cut, True
        self.started()

    @rule()
    def trim(self) -> None:
        self.log.trim(self.ledger.tracker.minimum)

    def lacking(self, holds: int) -> list[Transaction]:
        return [each for each in self.wal if "a" in each.touched and each.lsn >= holds]

    @invariant()
    def nothing_is_lost(self) -> None:
        """What a table lacks that counts, or will, comes again, and is in the log if it was received."""
        if self.attempt != "copies" and not self.is_registered:
            return
        lacking = self.lacking(self.cut if self.attempt == "copies" else self.holds)
        assert all(self.ledger.tracker.frontier_lsn <= each.lsn for each in lacking)
        if self.attempt == "copies" or self.counts:
            kept = {lsn for relation, lsn in self.log.rows if relation == TABLES["a"]}
            assert kept >= {each.lsn for each in lacking if each in self.wal[: self.received]}

    @invariant()
    def without_a_cut_it_costs_the_others_nothing(self) -> None:
        if not self.counts and self.is_noted and self.attempt in (None, "waits"):
            assert self.ledger.tracker.progress("a") is None


TestCopyMachine = CopyMachine.TestCase
TestCopyMachine.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, derandomize=True, database=None
)

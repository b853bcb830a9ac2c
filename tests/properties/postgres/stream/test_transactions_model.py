"""TransactionBuilder in a stream as Postgres sends it, against the list of everything that was sent."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.errors import ProtocolViolation
from penstock.model.log_offset import LogOffset
from penstock.postgres.stream.walk import TransactionBuilder

CONFIRMED_LSN = 1_000


@dataclass
class Transaction:
    commit_lsn: int
    end_lsn: int
    places: list[int] = field(default_factory=list)
    complete: bool = False


class BuilderMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.builder = TransactionBuilder(confirmed_lsn=CONFIRMED_LSN)
        self.transactions: list[Transaction] = []
        self.keepalives = [CONFIRMED_LSN]
        self.wal = CONFIRMED_LSN
        self.safe_before = CONFIRMED_LSN

    @property
    def open_one(self) -> Transaction | None:
        return self.transactions[-1] if self.transactions and not self.transactions[-1].complete else None

    @precondition(lambda self: self.open_one is None)
    @rule(gap=st.integers(0, 3), length=st.integers(1, 9))
    def begin(self, gap: int, length: int) -> None:
        """A gap of 0: the commit stands exactly where the last keepalive or transaction ended."""
        self.transactions.append(Transaction(self.wal + gap, self.wal + gap + length))
        self.builder.begin(self.wal + gap, self.wal + gap + length)

    @precondition(lambda self: self.open_one is not None)
    @rule(count=st.integers(1, 5))
    def change(self, count: int) -> None:
        transaction = self.transactions[-1]
        for _ in range(count):
            assert self.builder.commit_lsn == transaction.commit_lsn
            transaction.places.append(self.builder.place())

    @precondition(lambda self: self.open_one is not None)
    @rule()
    def commit(self) -> None:
        transaction = self.transactions[-1]
        assert self.builder.commit(transaction.commit_lsn) == transaction.end_lsn
        transaction.complete = True
        self.wal = transaction.end_lsn

    @precondition(lambda self: self.open_one is None)
    @rule(gap=st.integers(0, 5))
    def keepalive_between(self, gap: int) -> None:
        self.wal += gap
        moved = self.builder.keepalive(self.wal)
        assert moved == (self.wal if self.wal > self.safe_before else None)
        self.keepalives.append(self.wal)

    @precondition(lambda self: self.open_one is not None)
    @rule(beyond=st.integers(0, 20))
    def keepalive_inside(self, beyond: int) -> None:
        assert self.builder.keepalive(self.transactions[-1].commit_lsn + beyond) is None

    @rule(back=st.integers(1, 50))
    def stale_keepalive(self, back: int) -> None:
        assert self.builder.keepalive(self.safe_before - back) is None

    @rule(lsn=st.integers(0, 50))
    def refuse_what_does_not_fit(self, lsn: int) -> None:
        if self.open_one is None:
            with pytest.raises(ProtocolViolation):
                self.builder.place()
            with pytest.raises(ProtocolViolation):
                self.builder.commit(self.wal + lsn)
        else:
            with pytest.raises(ProtocolViolation):
                self.builder.begin(self.wal + lsn, self.wal + lsn + 1)

    @invariant()
    def safe_is_the_end_of_all_that_is_complete(self) -> None:
        ends = [transaction.end_lsn for transaction in self.transactions if transaction.complete]
        assert self.builder.safe_lsn == max(ends + self.keepalives)

    @invariant()
    def safe_never_decreases_and_never_covers_the_open_transaction(self) -> None:
        safe = self.builder.safe_lsn
        assert safe >= self.safe_before
        self.safe_before = safe
        # The server sends a transaction again if its commit is at or above what was confirmed.
        assert self.open_one is None or safe <= self.open_one.commit_lsn
        assert self.builder.in_transaction == (self.open_one is not None)

    @invariant()
    def positions_increase_over_the_whole_stream(self) -> None:
        offsets = [
            LogOffset(transaction.commit_lsn, place)
            for transaction in self.transactions
            for place in transaction.places
        ]
        assert offsets == sorted(set(offsets))
        for transaction in self.transactions:
            assert transaction.places == list(range(0, 2 * len(transaction.places), 2))


TestBuilderMachine = BuilderMachine.TestCase
TestBuilderMachine.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, derandomize=True, database=None
)

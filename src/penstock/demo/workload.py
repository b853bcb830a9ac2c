"""The workload: staff on several connections, who run the shop's transactions until it closes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import Final, NamedTuple

import psycopg

from penstock.demo import shop

WRITERS: Final = 4
BUSY_S: Final = 0.025
"""On two cores, everybody else has to breathe too."""
QUIET_S: Final = 0.1
"""While a Spark warms up."""
CALM_S: Final = 1.0
"""For somebody who watches: enough for charts that move."""
_REMEMBERED: Final = 40


@dataclass
class Pace:
    """How busy the shop is; may be changed while it is open."""

    pause_s: float
    """Between two transactions of a writer, on average."""


class Books(NamedTuple):
    """What the writers know by themselves: how their transactions ended and how many rows they changed."""

    transactions: int = 0
    """Committed, with at least one change."""
    changes: int = 0
    """In committed transactions, without what was undone to a savepoint."""
    rollbacks: int = 0


class Workload:
    """Writers, each on a thread and a connection of its own, each with a random sequence of its own."""

    def __init__(self, conninfo: str, *, seed: int, pace: Pace) -> None:
        self._closing = threading.Event()
        self._writers = [
            _Writer(conninfo, f"{seed}/{number}", self._closing, pace) for number in range(WRITERS)
        ]
        self._threads = ThreadPoolExecutor(WRITERS, thread_name_prefix="writer")
        self._running: list[Future[None]] = []

    @property
    def books(self) -> Books:
        """What was done so far."""
        return Books(*map(sum, zip(*(writer.books for writer in self._writers), strict=True)))

    def stock_up(self) -> None:
        """Fill the shop, once in its life."""
        self._writers[0].stock_up()

    def open(self) -> None:
        """Let everybody work."""
        self._running = [self._threads.submit(writer.run) for writer in self._writers]

    def check(self) -> None:
        """Raise what ended a writer, if anything did."""
        for writer in self._running:
            if writer.done():
                writer.result()

    def close(self) -> None:
        """Everybody finishes the transaction at hand."""
        self._closing.set()
        self._threads.shutdown()


class _Writer:
    def __init__(self, conninfo: str, seed: str, closing: threading.Event, pace: Pace) -> None:
        self.books = Books()
        self._conninfo = conninfo
        self._random = Random(seed)  # noqa: S311 (a shop, not a secret)
        self._closing = closing
        self._pace = pace
        self._orders: list[int] = []

    def stock_up(self) -> None:
        with psycopg.connect(self._conninfo, autocommit=True) as connection:
            self._transact(connection, shop.stock_up)

    def run(self) -> None:
        with psycopg.connect(self._conninfo, autocommit=True) as connection:
            while not self._closing.wait(self._random.expovariate(1 / self._pace.pause_s)):
                self._transact(connection, self._next_task(), regret=self._random.random() < 0.08)

    def _next_task(self) -> Callable[[shop.Till], None]:
        dice = self._random.random()
        if dice < 0.5 or not self._orders:
            return self._place
        order = self._random.choice(self._orders)
        if dice < 0.7:
            return lambda till: shop.advance_order(till, order)
        if dice < 0.8:
            return lambda till: shop.cancel_order(till, order)
        return self._random.choice(shop.UPKEEP)

    def _place(self, till: shop.Till) -> None:
        # A number of an order that is rolled back is remembered too: updates of it change no row.
        order = self._random.choice(shop.ORDERS)(till)
        self._orders = [*self._orders[-_REMEMBERED:], order]

    def _transact(
        self, connection: psycopg.Connection, task: Callable[[shop.Till], None], *, regret: bool = False
    ) -> None:
        till = shop.Till(connection, self._random)
        try:
            with connection.transaction():
                task(till)
                if regret:
                    raise _Regret
        except (_Regret, psycopg.errors.DeadlockDetected):
            self.books = self.books._replace(rollbacks=self.books.rollbacks + 1)
            return
        if till.changes:
            done = self.books
            self.books = Books(done.transactions + 1, done.changes + till.changes, done.rollbacks)


class _Regret(Exception):
    """The customer changes their mind: all of the transaction is rolled back."""

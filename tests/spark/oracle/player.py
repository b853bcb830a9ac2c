"""Player: plays what a world's writers do, statement by statement, their transactions side by side.

One thread plays them all in the order that the world says, so a seed gives the same history each time. A
statement that waits for another writer gives up at once, and its transaction begins again.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle

import psycopg

from tests.spark.oracle.world import Transaction, World

_LOCK_TIMEOUT_MS = 20
_ATTEMPTS = 6


class Writer:
    """One writer's connection, and what it has still to do."""

    def __init__(self, conninfo: str, schema: str, transactions: tuple[Transaction, ...]) -> None:
        self._conninfo = conninfo
        self._options = f"-c search_path={schema} -c lock_timeout={_LOCK_TIMEOUT_MS}"
        self._transactions = iter(transactions)
        self._open: Transaction | None = None
        self._statements: Iterator[str] = iter(())
        self._attempts = 0
        self._connection: psycopg.Connection | None = None
        self.is_done = False
        self.committed = 0
        """Transactions."""
        self.done: list[str] = []
        """The statements of these."""

    def step(self) -> None:
        """Do the next statement, or end the transaction. What Postgres refuses is rolled back."""
        if self._open is None and not self._begin():
            return
        try:
            statement = next(self._statements, None)
            if statement is None:
                self._end()
            else:
                self._connect().execute(statement.encode())
        except psycopg.errors.LockNotAvailable:
            self._begin_again()
        except psycopg.Error:
            self._abandon()

    def finish(self) -> None:
        """Do what is left of an open transaction."""
        while self._open is not None:
            self.step()

    def close(self) -> None:
        """Hang up; an open transaction is rolled back."""
        self._open = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> psycopg.Connection:
        if self._connection is None:
            self._connection = psycopg.connect(self._conninfo, options=self._options)
        return self._connection

    def _begin(self) -> bool:
        self._open = next(self._transactions, None)
        if self._open is None:
            self.is_done = True
            self.close()
            return False
        self._statements = iter(self._open.statements)
        self._attempts = 1
        return True

    def _begin_again(self) -> None:
        transaction, attempts = self._open, self._attempts
        self._abandon()
        if transaction is not None and attempts < _ATTEMPTS:
            self._open, self._attempts = transaction, attempts + 1
            self._statements = iter(transaction.statements)

    def _end(self) -> None:
        ending, self._open = self._open, None
        if self._connection is None:
            return
        if ending is not None and ending.commit:
            self._connection.commit()
            self.committed += 1
            self.done += ending.statements
        else:
            self._connection.rollback()

    def _abandon(self) -> None:
        self._open = None
        if self._connection is None:
            return
        if self._connection.closed:
            self._connection = None
        else:
            self._connection.rollback()


class Player:
    """The writers of one world."""

    def __init__(self, conninfo: str, schema: str, world: World) -> None:
        self._writers = [Writer(conninfo, schema, each) for each in world.writers]
        self._turns = cycle(world.turns)
        self.steps = sum(len(each.statements) + 1 for writer in world.writers for each in writer)
        """About how many there are."""

    def play(self, steps: int) -> None:
        """Go so many statements further; transactions may stay open."""
        for _ in range(steps):
            waiting = [writer for writer in self._writers if not writer.is_done]
            if not waiting:
                return
            waiting[next(self._turns) % len(waiting)].step()

    def play_all(self) -> None:
        """Go to the end."""
        while not all(writer.is_done for writer in self._writers):
            self.play(1)

    def finish_open(self) -> None:
        """End the open transactions: what waits for them may go on."""
        for writer in self._writers:
            writer.finish()

    def close(self) -> None:
        """Hang up."""
        for writer in self._writers:
            writer.close()

    @property
    def committed(self) -> int:
        """Transactions so far."""
        return sum(writer.committed for writer in self._writers)

    @property
    def done(self) -> list[str]:
        """The statements of these."""
        return [statement for writer in self._writers for statement in writer.done]

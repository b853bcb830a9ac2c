"""Pairs of rows between which money moves: a reader that sees half a transaction sees a wrong sum."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable

import psycopg

from tests.servers.capture_site import CaptureSite, wait_until

PAIRS = 40
SUM = 1_000


class MoneyMover:
    """Moves amounts between the two rows of each of many pairs, until it is told to end."""

    def __init__(self, site: CaptureSite, *, pause_s: float = 0.002) -> None:
        site.psql("CREATE TABLE accounts (id int PRIMARY KEY, amount int)")
        site.psql(f"INSERT INTO accounts SELECT i, {SUM} * (i % 2) FROM generate_series(1, {2 * PAIRS}) i")
        self._conninfo = site.conninfo
        self._pause_s = pause_s
        self.moved = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._move, name="mover", daemon=True)

    def __enter__(self) -> MoneyMover:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join(20)

    def goes_on(self, count: int) -> None:
        """Wait until money was moved so many times more."""
        goal = self.moved + count
        wait_until(lambda: self.moved >= goal, "money is moved")

    def _move(self) -> None:
        with psycopg.connect(self._conninfo, autocommit=True) as session:
            while not self._stop.wait(self._pause_s):
                pair, amount = 1 + 2 * (self.moved % PAIRS), self.moved % SUM
                with session.transaction():
                    session.execute("UPDATE accounts SET amount = %s WHERE id = %s", (SUM - amount, pair))
                    session.execute("UPDATE accounts SET amount = %s WHERE id = %s", (amount, pair + 1))
                self.moved += 1


class Amounts(dict[int, int]):
    """What a reader knows of the accounts."""

    def apply(self, changes: Iterable[bytes]) -> None:
        """Changes of any table, in order."""
        for payload in changes:
            change = json.loads(payload)
            if change["table"] == "accounts":
                row = {column["name"]: column["value"] for column in change["columns"]}
                self[row["id"]] = row["amount"]

    def wrong_pairs(self) -> list[int]:
        """The first rows of pairs that lack money, or have some too much."""
        return [row for row in range(1, 2 * PAIRS, 2) if row in self and self[row] + self[row + 1] != SUM]

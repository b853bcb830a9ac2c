"""A server with a log of transactions and a slot: what was committed is what readers have to see."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.model.lsn import format_lsn
from penstock.model.stream_position import History, StreamPosition

START_LSN = 0x1_0000_0100
"""Where the log begins."""
COLUMNS_OF_KEY = b'[{"name":"id","type":"integer"}]'


class Row(NamedTuple):
    """An insert; its serial number is its own."""

    table: str
    key: int
    serial: int


class Transaction(NamedTuple):
    """What one commit has written."""

    commit_lsn: int
    end_lsn: int
    rows: tuple[Row, ...]

    def frames(self) -> Iterator[bytes]:
        """As wal2json sends it."""
        yield _boundary("B", self)
        for row in self.rows:
            said = (row.serial, row.table.encode(), row.key, COLUMNS_OF_KEY)
            yield _frame(
                b'{"action":"I","serial":%d,"schema":"public","table":"%b",'
                b'"columns":[{"name":"id","value":%d}],"pk":%b}' % said,
                self.commit_lsn,
            )
        yield _boundary("C", self)


class Silence(NamedTuple):
    """A keepalive between transactions."""

    end_lsn: int

    @property
    def commit_lsn(self) -> int:
        return self.end_lsn

    def frames(self) -> Iterator[bytes]:
        yield struct.pack("!cqqB", b"k", self.end_lsn, 0, False)


class Server:
    """One timeline, with all that it has of those before."""

    def __init__(self, history: History, log: Sequence[Transaction | Silence], confirmed_lsn: int) -> None:
        self.history = history
        self.log = list(log)
        self.told = [confirmed_lsn]
        """All that the slot was ever told."""

    @property
    def confirmed_lsn(self) -> int:
        return self.told[-1]

    @property
    def begins_at(self) -> int:
        """Where it became the primary."""
        return max(self.history.switch_points.values(), default=START_LSN)

    @property
    def end_lsn(self) -> int:
        return self.boundaries[-1]

    @property
    def boundaries(self) -> list[int]:
        """Where a transaction, or silence, has ended, or a timeline has."""
        return sorted({START_LSN, self.begins_at, *(entry.end_lsn for entry in self.log)})

    def commit(self, rows: Sequence[Row], *, pause: int) -> None:
        lsn = self.end_lsn + pause
        self.log.append(Transaction(lsn, lsn + 8, tuple(rows)))

    def rest(self, pause: int) -> None:
        lsn = self.end_lsn + pause
        self.log.append(Silence(lsn))

    def confirm(self, lsn: int) -> None:
        if lsn > self.confirmed_lsn:
            self.told.append(lsn)

    def promoted(self, switch_lsn: int, confirmed_lsn: int) -> Server:
        """A standby that had received so much goes on as the next timeline."""
        old = self.history
        history = History(old.timeline + 1, {**old.switch_points, old.timeline: switch_lsn})
        return Server(history, [each for each in self.log if each.end_lsn <= switch_lsn], confirmed_lsn)

    def told_between(self, low: str, high: str) -> list[list[int]]:
        """What a reader has to have that began at one boundary and has come to another one."""
        first, end = (StreamPosition.parse(text).commit_lsn for text in (low, high))
        return [
            [row.serial for row in each.rows]
            for each in self.log
            if isinstance(each, Transaction) and each.rows and first <= each.commit_lsn < end
        ]


def _boundary(action: str, said: Transaction) -> bytes:
    lsn, end = format_lsn(said.commit_lsn), format_lsn(said.end_lsn)
    return _frame(f'{{"action":"{action}","lsn":"{lsn}","nextlsn":"{end}"}}'.encode(), said.end_lsn)


def _frame(payload: bytes, wal_start: int) -> bytes:
    return struct.pack("!cqqq", b"w", wal_start, wal_start, 0) + payload

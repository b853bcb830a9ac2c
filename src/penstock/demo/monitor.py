"""The monitor: reads processes, slot and writers twice a second, for the story's readings."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, LiteralString, Self

import psycopg

from penstock.demo.processes import Answers, Capture
from penstock.demo.story import ProcessReading, Rate, Readings, Story
from penstock.demo.workload import Workload

_INTERVAL_S: Final = 0.5
_LAG: Final[LiteralString] = """
SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)::bigint
FROM pg_replication_slots WHERE slot_name = %s
"""
_ROLES: Final = {"streaming": "leader", "draining": "leader", "standby": "standby"}


class Monitor:
    """A thread of its own while its `with` block lasts."""

    def __init__(
        self, story: Story, captures: Sequence[Capture], workload: Workload, conninfo: str, slot: str
    ) -> None:
        self._story = story
        self._captures = captures
        self._workload = workload
        self._conninfo = conninfo
        self._slot = slot
        self._published = dict.fromkeys((capture.name for capture in captures), 0)
        self._commits, self._records = Rate(), Rate()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="monitor", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._end.set()
        self._thread.join()
        self._story.readings = None

    def _run(self) -> None:
        # A server that is gone ends the writers too, and they are asked why.
        with suppress(psycopg.Error), psycopg.connect(self._conninfo, autocommit=True) as connection:
            while not self._end.wait(_INTERVAL_S):
                self._story.readings = self._read(connection)

    def _read(self, connection: psycopg.Connection) -> Readings:
        [(lag_bytes,)] = connection.execute(_LAG, [self._slot]).fetchall()
        processes = [self._read_process(capture) for capture in self._captures]
        now = time.monotonic()
        return Readings(
            processes,
            lag_bytes,
            self._commits.per_s(self._workload.books.transactions, now),
            self._records.per_s(sum(self._published.values()), now),
        )

    def _read_process(self, capture: Capture) -> ProcessReading:
        answers = capture.ask()
        if answers is not None:
            # A process that is gone can't be asked any more; what it had published stays published.
            self._published[capture.name] = answers.published
        role, phase = _role_and_phase(capture, answers)
        return ProcessReading(capture.name, capture.pid, role, phase, self._published[capture.name])


def _role_and_phase(capture: Capture, answers: Answers | None) -> tuple[str, str]:
    if capture.killed:
        return "killed", "-"
    if capture.exit_code is not None:
        return "ended", "-"
    if answers is None:
        return "-", "no answer"
    return _ROLES.get(answers.phase, "-"), answers.phase

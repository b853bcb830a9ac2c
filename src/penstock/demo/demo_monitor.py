"""The monitor: reads processes, slots and writers twice a second, for the story's readings."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Final, LiteralString, Self

import psycopg

from penstock.demo import capture_act, shapes_act
from penstock.demo.processes import Answers, Service
from penstock.demo.story import ProcessReading, Rate, Readings, Story
from penstock.demo.watch import Watch
from penstock.demo.workload import Workload

_INTERVAL_S: Final = 0.5
_LAGS: Final[LiteralString] = """
SELECT slot_name, pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)::bigint
FROM pg_replication_slots WHERE confirmed_flush_lsn IS NOT NULL
"""
_ROLES: Final = {"streaming": "leader", "draining": "leader", "standby": "standby"}


class Monitor:
    """A thread of its own while its `with` block lasts."""

    def __init__(self, story: Story, watch: Watch, workload: Workload, conninfo: str) -> None:
        self._story = story
        self._watch = watch
        self._workload = workload
        self._conninfo = conninfo
        self._done: dict[str, int] = {}
        self._commits, self._records, self._rows = Rate(), Rate(), Rate()
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
        lags: dict[str, int] = dict(connection.execute(_LAGS).fetchall())
        services = self._watch.services
        processes = [self._read_process(service, lags) for service in services]
        now = time.monotonic()

        def done(slot: str) -> int:
            return sum(self._done.get(service.name, 0) for service in services if service.slot == slot)

        return Readings(
            processes,
            self._commits.per_s(self._workload.books.transactions, now),
            self._records.per_s(done(capture_act.SLOT), now),
            self._rows.per_s(done(shapes_act.SLOT), now),
        )

    def _read_process(self, service: Service, lags: dict[str, int]) -> ProcessReading:
        answers = service.ask()
        if answers is not None:
            # A process that is gone can't be asked any more; what it had done stays done.
            self._done[service.name] = answers.done
        role, phase = _role_and_phase(service, answers)
        lag = lags.get(service.slot) if role == "leader" else None
        return ProcessReading(service.name, service.pid, role, phase, self._done.get(service.name, 0), lag)


def _role_and_phase(service: Service, answers: Answers | None) -> tuple[str, str]:
    if service.killed:
        return "killed", "-"
    if service.exit_code is not None:
        return "ended", "-"
    if answers is None:
        return "-", "no answer" if service.events("started") else "starting"
    return _ROLES.get(answers.phase, "-"), answers.phase

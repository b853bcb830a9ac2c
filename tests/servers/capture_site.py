"""Where captures work: one database, one slot, one stream, and what a test wants to know of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from penstock.capture.noted_frontier import MUCH_WAL_BYTES
from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from penstock.model.lsn import parse_lsn
from tests.servers.capture_process import CaptureProcess
from tests.servers.stopwatch import Stopwatch

T = TypeVar("T")

TURNS_WITHIN_S = 5.0
_POLL_S = 0.02
_NOTED_WITHIN_S = 1.0
_MUCH_WAL = f"SELECT pg_logical_emit_message(false, 'test', repeat('x', {MUCH_WAL_BYTES}))"
_SLOT = """
    SELECT plugin, active_pid, confirmed_flush_lsn::text, restart_lsn::text, wal_status
    FROM pg_replication_slots WHERE slot_name = '{}'
"""


class SlotRow(NamedTuple):
    """The slot as pg_replication_slots shows it."""

    plugin: str
    active_pid: int | None
    confirmed_lsn: int
    restart_lsn: int
    wal_status: str


class CaptureSite:
    """Starts captures with one set of variables; `over` replaces some of them or adds more.

    Times are short, so that takeovers are quick, and all of them can be replaced.
    """

    def __init__(
        self,
        postgres: PrivatePostgres,
        database: str,
        kinesis: LocalKinesis,
        stream: str,
        *,
        slot: str | None = None,
        **over: object,
    ) -> None:
        self.postgres = postgres
        self.database = database
        self.kinesis = kinesis
        self.stream = stream
        self.slot = slot or f"slot_{database}"
        self._over = {"LEADER_TIMEOUT_S": 3, "STANDBY_RETRY_INTERVAL_S": 1, **over}

    @property
    def conninfo(self) -> str:
        """How a writer reaches the database."""
        return self.postgres.conninfo(self.database)

    def env(self, **over: object) -> dict[str, str]:
        """The variables of a capture here."""
        own = {"KINESIS_STREAM": self.stream, "REPLICATION_SLOT": self.slot, **self._over, **over}
        return {
            **self.postgres.env(self.database),
            **self.kinesis.env(),
            **{name: str(value) for name, value in own.items()},
        }

    def capture(self, **over: object) -> CaptureProcess:
        """Start a capture."""
        return CaptureProcess(self.env(**over))

    def psql(self, sql: str) -> list[tuple[Any, ...]]:
        """Run SQL in the database."""
        return self.postgres.psql(sql, self.database)

    def slot_row(self) -> SlotRow | None:
        """The slot now."""
        rows = self.postgres.psql(_SLOT.format(self.slot))
        if not rows:
            return None
        plugin, active_pid, confirmed, restart, wal_status = rows[0]
        return SlotRow(plugin, active_pid, _lsn(confirmed), _lsn(restart), wal_status)

    def wait_until_free(self) -> None:
        """Wait until nobody reads the slot: the server notices the end of a process a moment later."""
        wait_until(lambda: (slot := self.slot_row()) and slot.active_pid is None, "the slot is free")

    def wal_end(self) -> int:
        """An LSN at or above the end of everything committed so far."""
        ((lsn,),) = self.postgres.psql("SELECT pg_current_wal_insert_lsn()::text")
        return _lsn(lsn)

    def wait_until_confirmed(self, lsn: int | None = None, timeout: float = 90.0) -> None:
        """Wait until the slot is confirmed up to an LSN, or up to all that is committed now.

        The last that is there may be capture's own note, and for that alone it doesn't write another one. So
        after a while much WAL is written in another database, which the slot passes over: that is worth a
        note at once.
        """
        goal = self.wal_end() if lsn is None else lsn
        noted_by: float | None = time.monotonic() + _NOTED_WITHIN_S

        def reached() -> bool:
            nonlocal noted_by
            slot = self.slot_row()
            if slot is not None and slot.confirmed_lsn >= goal:
                return True
            if noted_by is not None and time.monotonic() >= noted_by:
                noted_by = None
                self.postgres.psql(_MUCH_WAL, "template1" if self.database == "postgres" else "postgres")
            return False

        wait_until(reached, "the slot is confirmed so far", timeout)


def wait_until(condition: Callable[[], T | None], what: str, timeout: float = 20.0) -> T:
    """Wait until a condition gives something true, and return that."""
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
        time.sleep(_POLL_S)
    return found


def wait_for_phase(capture: CaptureProcess, phase: str, timeout: float = 20.0) -> dict[str, Any]:
    """Wait until a capture's `/readyz` says that it is in a phase, and give that answer."""

    def there() -> dict[str, Any] | None:
        answer = readiness(capture)
        return answer if answer["phase"] == phase else None

    return wait_until(there, f"penstock {capture.pid} is {phase}", timeout)


def readiness(capture: CaptureProcess) -> dict[str, Any]:
    """What `/readyz` says, with its status; the phase is "unreachable" while nobody listens there."""
    try:
        status, text = capture.get("/readyz")
    except OSError:
        assert capture.running, "penstock has ended"
        return {"status": None, "phase": "unreachable", "reasons": []}
    return {"status": status, **json.loads(text)}


def turns(capture: CaptureProcess, *, ready: bool, sentence: str = "") -> None:
    """Wait until `/readyz` says so, with this sentence among its reasons: within 5 s, as is promised."""

    def turned() -> bool:
        answer = readiness(capture)
        return (answer["status"] == 200) == ready and sentence in " ".join(answer["reasons"])

    watch = Stopwatch()
    while not turned():
        assert watch.seconds < TURNS_WITHIN_S, (
            f"not within {TURNS_WITHIN_S} s: ready is {ready}, {sentence!r}"
        )
        time.sleep(_POLL_S)


def metric(capture: CaptureProcess, name: str) -> float:
    """The value of a metric without labels."""
    return capture.metrics()[name]


def logged_at(event: dict[str, Any]) -> float:
    """When an event was logged, as time.time() tells time."""
    return datetime.fromisoformat(event["timestamp"]).timestamp()


def _lsn(text: str | None) -> int:
    return 0 if text is None else parse_lsn(text)

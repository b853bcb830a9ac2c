"""An ops port with a service of many shapes behind it, and an hour of history: what a page is measured on."""

from __future__ import annotations

import math
import random
import time
from typing import Self

from penstock.ops.access import Access
from penstock.ops.server import OpsServer
from penstock.postgres.leader.freshness import Freshness
from penstock.status.board import StatusBoard
from penstock.status.health import Health
from penstock.status.metrics import CaptureMetrics, ShapesMetrics
from penstock.status.model import CaptureReading, ShapeReading, ShapesReading
from tests.servers.loop_thread import LoopThread
from tests.servers.slots import HEALTHY

_LSN = 0x16B374D848
_TABLES = ("orders", "order_lines", "customers", "payments", "shipments", "products", "stock", "returns")


class PageStage:
    """Serves made-up readings that move as real ones do. Its loop runs in a thread of its own."""

    def __init__(self, *, shapes: int = 0, failing: bool = False, access: Access | None = None) -> None:
        """Without shapes it is a capture."""
        self._random = random.Random(7)
        self._count = shapes
        self._paces = [self._random.uniform(1, 500) for _ in range(shapes)]
        self._failing = failing
        self._began = time.monotonic()
        self.health = Health()
        self.board = StatusBoard("shapes" if shapes else "capture", self.health)
        self.health.start_streaming(Freshness(limit_s=1e9, now=0.0), 0.0)
        self.board.lead(lambda: self._shapes(self._passed_s()) if shapes else self._capture(self._passed_s()))
        metrics = ShapesMetrics() if shapes else CaptureMetrics()
        self._ops = OpsServer(self.health, self.board.read, metrics.exposition, access)
        self._loop = LoopThread("page stage")
        self.url = ""

    def __enter__(self) -> Self:
        self._fill_history()
        self.url = self._loop.run(self._ops.start("127.0.0.1", 0))
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._loop.run(self._ops.stop())
        self._loop.close()

    def cpu_s(self) -> float:
        """The processor time of its loop so far."""
        return self._loop.call(time.thread_time)

    def stand_by(self, leader: str) -> None:
        """From now on another leads."""

        def rest() -> None:
            self.board.rest()
            self.health.stand_by(leader)

        self._loop.call(rest)

    def _passed_s(self) -> float:
        return 3600 + time.monotonic() - self._began

    def _fill_history(self) -> None:
        history = self._ops._audience._history
        now = time.time()
        for ago in range(3600, 0, -10):
            passed_s = 3600.0 - ago
            reading = self._shapes(passed_s) if self._count else self._capture(passed_s)
            self.board.lead(lambda reading=reading: reading)  # type: ignore[misc]
            self._note_slot(passed_s)
            history.take(self.board.read(), now - ago)
        self.board.lead(
            lambda: self._shapes(self._passed_s()) if self._count else self._capture(self._passed_s())
        )

    def _note_slot(self, passed_s: float) -> None:
        retained = int(3e6 + 2e6 * (passed_s % 300) / 300)
        slot = HEALTHY._replace(
            confirmed_flush_lsn=self._lsn(passed_s), retained_bytes=retained, safe_wal_bytes=4 << 30
        )
        self.board.note_slot(slot, time.monotonic())

    def _lsn(self, passed_s: float) -> int:
        return _LSN + int(passed_s * 180_000)

    def _capture(self, passed_s: float) -> CaptureReading:
        rate = 900 + 500 * math.sin(passed_s / 400)
        # A while ago Kinesis was slow.
        late_s = max(0.0, 25 - abs(passed_s - 2900) / 6) + self._random.random() * 0.08
        lag = int(late_s * 180_000)
        return CaptureReading(
            0.1,
            self._lsn(passed_s) + lag,
            self._lsn(passed_s),
            pending=int(late_s * rate),
            queue_events=int(late_s * rate / 4),
            inflight_bytes=int(late_s * rate * 400),
            records=int(passed_s * 900 - 200_000 * math.cos(passed_s / 400)) + 300_000,
            oldest_lsn=self._lsn(passed_s) + 1,
            oldest_committed_at=time.time() - late_s,
            pending_limit=1_000_000,
            queue_limit=10_000,
            inflight_limit_bytes=128 << 20,
        )

    def _shapes(self, passed_s: float) -> ShapesReading:
        return ShapesReading(
            0.1,
            self._lsn(passed_s) + 4000,
            self._lsn(passed_s),
            transactions=int(passed_s * 100),
            changes=int(passed_s * 400),
            log_bytes=int(2e6 + 1e6 * math.sin(passed_s / 60)),
            log_is_full=False,
            shapes=[self._shape(number, passed_s) for number in range(self._count)],
        )

    def _shape(self, number: int, passed_s: float) -> ShapeReading:
        name = _TABLES[number % len(_TABLES)] + (
            f"_{number // len(_TABLES)}" if number >= len(_TABLES) else ""
        )
        if self._failing and number == 3:
            error = (
                f'public.{name} has no column "due_on" any more, and the shape names it. Fix: take it out of'
                " the shapes file, or put the column back"
            )
            return ShapeReading(name, "stopped", _LSN, 4_200_000, 512.4, 120_311, error, 512.4)
        since_s = (passed_s + number) % 5
        state = "flushing" if since_s > 4 else "idle"
        # Numbers of real shapes have little in common: what is said of them must not shrink to nothing.
        held = self._lsn(passed_s - since_s) - self._random.randrange(100_000)
        lag = self._random.randrange(1_000_000)
        rows = int(passed_s * self._paces[number])
        return ShapeReading(name, state, held, lag, since_s, rows, None, since_s, 5 - since_s)

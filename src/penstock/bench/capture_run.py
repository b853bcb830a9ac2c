"""`penstock capture` as a process to be measured."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final, Self

from penstock.bench.backlog import capture_slot
from penstock.bench.responder import Responder
from penstock.local.penstock_process import PenstockProcess
from penstock.local.postgres import PrivatePostgres

_PATIENCE_S: Final = 120.0
_MEBIBYTE: Final = 1024 * 1024


class CaptureRun(PenstockProcess):
    """Starts capture from a database to a responder, and measures the process from outside."""

    def __init__(self, postgres: PrivatePostgres, database: str, responder_url: str, **settings: str) -> None:
        self._started = time.monotonic()
        super().__init__(
            ["capture"],
            {
                **postgres.env(database),
                "AWS_ENDPOINT_URL_KINESIS": responder_url,
                "AWS_REGION": "local",
                "AWS_ACCESS_KEY_ID": "bench",
                "AWS_SECRET_ACCESS_KEY": "bench",
                "AWS_EC2_METADATA_DISABLED": "true",
                "KINESIS_STREAM": "bench",
                "REPLICATION_SLOT": capture_slot(database),
                **settings,
            },
        )

    def __enter__(self) -> Self:
        self.wait_until(lambda: self.events("streaming"), "streaming", _PATIENCE_S, poll_s=0.01)
        self.streaming_at = time.time()
        self.seconds_to_streaming = time.monotonic() - self._started
        return self

    def close(self) -> None:
        """Let it drain before it ends."""
        self.end(30.0)
        super().close()

    def wait_for_records(self, responder: Responder, records: int) -> None:
        """Wait until the responder has taken this many; it keeps the time, so we ask seldom."""
        self.wait_until(
            lambda: responder.report()["records"] >= records, f"{records} records", _PATIENCE_S, poll_s=0.2
        )

    def rss_mb(self) -> float:
        """Resident memory."""
        return self.rss_bytes() / _MEBIBYTE

    def peak_rss_mb(self) -> float:
        """The highest resident memory so far."""
        return self.peak_rss_bytes() / _MEBIBYTE

    def move_to(self, core: int) -> None:
        """Let it run on this core only; threads that it starts later too."""
        for thread in os.listdir(f"/proc/{self.pid}/task"):
            os.sched_setaffinity(int(thread), {core})

    def core_wait_seconds(self) -> float:
        """How long the main thread, the event loop's, has been ready to run without getting a core."""
        schedstat = Path(f"/proc/{self.pid}/task/{self.pid}/schedstat")
        return int(schedstat.read_text().split()[1]) / 1e9

"""A streaming query over a marked stream, as a process that is killed, and what its attempts have left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg

from penstock.demo.marked_stream import MarkedStream
from tests.servers.capture_site import CaptureSite
from tests.servers.shapes_fixtures import MASTER, SHORT_LIFE

ROWS_A_BATCH = 40


class MarkedQuery:
    """The program is marked_query_child.py; its files are in a directory that only the driver needs."""

    def __init__(
        self,
        site: CaptureSite,
        directory: Path,
        *,
        master: str = MASTER,
        conf: Mapping[str, str] | None = None,
    ) -> None:
        self._site = site
        self._directory = directory
        self._conf = {"spark.master": master, "spark.driver.host": "127.0.0.1", **SHORT_LIFE, **(conf or {})}

    @contextmanager
    def running(self, mode: str) -> Iterator[subprocess.Popen[bytes]]:
        """The process and its Java, `endless` or for what is `available`; both are killed at the end."""
        options = {
            "kinesis.streamName": self._site.stream,
            "kinesis.region": self._site.kinesis.region,
            "kinesis.endpointUrl": self._site.kinesis.endpoint_url,
            "slot": self._site.slot,
            "maxChangesPerBatch": str(ROWS_A_BATCH),
        }
        asked = json.dumps({"options": options, "conf": self._conf, "mode": mode})
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.servers.marked_query_child", asked, self._directory],
            env={**os.environ, **self._site.kinesis.env()},
            start_new_session=True,
        )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def under_way(self) -> list[Path]:
        """Attempts that have begun to write rows and have not ended."""
        found = []
        for path in self._files():
            with suppress(FileNotFoundError):  # it ended just now, and has another name
                if path.suffix != ".done" and path.stat().st_size:
                    found.append(path)
        return found

    def attempts(self) -> dict[int, list[list[str]]]:
        """The rows of each attempt at each batch, the whole ones first."""
        found: dict[int, list[list[str]]] = {}
        for path in sorted(self._files(), key=lambda path: path.suffix != ".done"):
            # A line that was not written to its end says nothing.
            lines = path.read_text().split("\n")[:-1]
            found.setdefault(int(path.name.split(".")[0]), []).append(lines)
        return found

    def done(self) -> int:
        """How many batches were written to their end."""
        return len({path.name.split(".")[0] for path in self._files() if path.suffix == ".done"})

    def assert_exact(self) -> None:
        """Every change once, in whole transactions of two rows; each attempt at a batch has its rows."""
        stored = MarkedStream(self._site.kinesis.read_all(self._site.stream), self._site.slot)
        published = [change.decode() for changes in stored.transactions() for change in changes]
        seen: list[str] = []
        attempts = self.attempts()
        assert sorted(attempts) == list(range(len(attempts)))
        for number in sorted(attempts):
            whole, *others = attempts[number]
            for rows in others:
                assert set(rows) <= set(whole), f"batch {number} had other rows"
            commits = [row[:25] for row in whole]
            assert all(commits.count(each) == 2 for each in commits), f"batch {number} has half a transaction"
            seen += whole
        assert len({row[:38] for row in seen}) == len(seen), "a change came twice"
        assert [row[39:] for row in sorted(seen)] == published

    def _files(self) -> list[Path]:
        return [path for path in self._directory.iterdir() if path.is_file()]


def insert_pairs(site: CaptureSite, first: int, last: int) -> None:
    """Transactions of two rows each, at a pace that lets a manifest tell of few of them."""
    with psycopg.connect(site.conninfo, autocommit=True) as session:
        for row in range(first, last):
            session.execute("INSERT INTO t VALUES (%s, 1), (%s, -1)", (2 * row, 2 * row + 1))
            time.sleep(0.01)

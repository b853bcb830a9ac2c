"""The rig: one `penstock capture` between a database of its own, the fault proxy and a stream of its own."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from tests.faults.oracle import (
    Oracle,
    SlotSample,
    assert_byte_for_byte,
    assert_slot_never_passed_unpublished,
)
from tests.faults.stream_checks import (
    Change,
    assert_last_occurrences_in_order,
    assert_nothing_missing,
    assert_repeats_identical,
    read_changes,
)
from tests.faults.workload import Writers
from tests.servers.capture_process import CaptureProcess
from tests.servers.fault_proxy import FaultProxy

_POLL_S = 0.02


class Readiness(NamedTuple):
    """What /readyz says."""

    status: int
    phase: str
    reasons: str


class Rig:
    """The servers of one fault test, and how a capture is started on them."""

    def __init__(
        self,
        postgres: PrivatePostgres,
        database: str,
        kinesis: LocalKinesis,
        stream: str,
        proxy: FaultProxy,
    ) -> None:
        self.postgres = postgres
        self.conninfo = postgres.conninfo(database)
        self.slot = f"slot_{database}"
        self.proxy = proxy
        self.oracle = Oracle(self.conninfo, self.slot)
        self._database = database
        self._kinesis = kinesis
        self._stream = stream

    def capture(self, **settings: object) -> CaptureProcess:
        """Start a capture; `settings` are its variables."""
        return CaptureProcess(
            {
                **self.postgres.env(self._database),
                **self._kinesis.env(),
                "AWS_ENDPOINT_URL_KINESIS": self.proxy.url,
                "KINESIS_STREAM": self._stream,
                "REPLICATION_SLOT": self.slot,
                "STANDBY_RETRY_INTERVAL_S": "0.5",
                **{name: str(value) for name, value in settings.items()},
            }
        )

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """Run SQL in the database."""
        return self.postgres.psql(statement, self._database)

    def changes(self) -> list[Change]:
        """What the stream holds now."""
        return read_changes(self._kinesis, self._stream)

    def wait_until_confirmed(self, timeout: float = 30.0) -> None:
        """Wait until the slot is confirmed up to the end of everything committed so far."""
        end = self.oracle.end_of_wal()
        eventually(lambda: self.oracle.sample().confirmed_lsn >= end, "all is confirmed", timeout)


def eventually(condition: Callable[[], object], what: str, timeout: float = 20.0) -> None:
    """Wait until a condition holds; an assertion fails if it does not in time."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
        time.sleep(_POLL_S)


def readiness(capture: CaptureProcess) -> Readiness:
    """Ask /readyz."""
    status, text = capture.get("/readyz")
    answer = json.loads(text)
    return Readiness(status, answer["phase"], "; ".join(answer["reasons"]))


def metric(capture: CaptureProcess, name: str) -> float:
    """The value of a metric without labels, by its name after `penstock_`."""
    found = re.search(rf"^penstock_{name} (\S+)$", capture.get("/metrics").text, re.MULTILINE)
    assert found is not None, f"no metric penstock_{name}"
    return float(found[1])


def check_everything(rig: Rig, writers: Writers, samples: Sequence[SlotSample] = ()) -> None:
    """`check_stream`, and the stream agrees with what the writers know."""
    assert not writers.in_doubt
    assert_nothing_missing(rig.changes(), writers.committed)
    check_stream(rig, samples)


def check_stream(rig: Rig, samples: Sequence[SlotSample] = ()) -> None:
    """What must hold when all is confirmed: of the stream, and of the slot whenever it was sampled."""
    changes, committed = rig.changes(), rig.oracle.committed()
    assert_byte_for_byte((change.data for change in changes), committed)
    assert_last_occurrences_in_order(changes)
    assert_repeats_identical(changes)
    assert_slot_never_passed_unpublished(samples, committed, rig.proxy.log.puts)
    assert not rig.proxy.log.violations

"""The oracle: what Postgres itself says was committed, and up to where the slot may have been confirmed."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import psycopg
from psycopg.rows import scalar_row

from penstock.decoding.wal2json import replication_options
from penstock.model.lsn import format_lsn, parse_lsn
from penstock.postgres.connection import PINNED_SESSION
from tests.servers.request_log import LoggedRequest

_SAMPLE_EVERY_S = 0.05
_SHOWN_BYTES = 200


class Committed(NamedTuple):
    """A committed change."""

    end_lsn: int
    """The end of its transaction: the slot may be confirmed up to here once the change is published."""
    payload: bytes


class SlotSample(NamedTuple):
    """What pg_replication_slots said."""

    taken_at: float
    """Monotonic seconds, after the answer."""
    confirmed_lsn: int
    active: bool


class Oracle:
    """A slot of the test's own beside the captured one, with the same options: it sees the same bytes.

    It makes both, so that nothing that a test writes comes before either.
    """

    def __init__(self, conninfo: str, slot: str) -> None:
        self._conninfo = conninfo
        self._captured = slot
        self._slot = f"oracle_{slot}"
        with self._session() as session:
            for name in (self._captured, self._slot):
                session.execute("SELECT pg_create_logical_replication_slot(%s, 'wal2json')", (name,))

    def committed(self) -> list[Committed]:
        """Every change committed since this oracle was made, in the order of the WAL."""
        options = replication_options(include_timestamp=True, include_lsn=True, include_pk=True)
        arguments = [part for option in options.items() for part in option]
        placeholders = ", ".join(["%s"] * len(arguments))
        with self._session() as session:
            frames = session.execute(
                f"SELECT data FROM pg_logical_slot_peek_changes(%s, NULL, NULL, {placeholders})".encode(),
                [self._slot, *arguments],
            ).fetchall()
        return list(_changes(frames))

    def sample(self) -> SlotSample:
        """The captured slot, now."""
        with self._session() as session:
            return self._sample(session)

    @contextmanager
    def watching(self) -> Iterator[list[SlotSample]]:
        """Sample the captured slot in the background, many times a second, until the block is left."""
        samples: list[SlotSample] = []
        stop = threading.Event()

        def watch() -> None:
            with self._session() as session:
                while not stop.wait(_SAMPLE_EVERY_S):
                    samples.append(self._sample(session))

        thread = threading.Thread(target=watch, name="slot-watch", daemon=True)
        thread.start()
        try:
            yield samples
        finally:
            stop.set()
            thread.join(10)
        assert samples, "the slot was never sampled"

    def _session(self) -> psycopg.Connection[str]:
        return psycopg.connect(
            self._conninfo, autocommit=True, row_factory=scalar_row, options=PINNED_SESSION
        )

    def _sample(self, session: psycopg.Connection[str]) -> SlotSample:
        row = session.execute(
            "SELECT confirmed_flush_lsn || ' ' || active FROM pg_replication_slots WHERE slot_name = %s",
            (self._captured,),
        ).fetchone()
        assert row is not None, f"there is no slot {self._captured}"
        lsn, active = row.split()
        return SlotSample(time.monotonic(), parse_lsn(lsn), active == "true")


def assert_slot_never_passed_unpublished(
    samples: Iterable[SlotSample], committed: Iterable[Committed], puts: Iterable[LoggedRequest]
) -> None:
    """At no sample was the slot confirmed beyond a change that Kinesis had not taken by then.

    A pointer to a quarantined payload counts as that payload.
    """
    taken_at: dict[bytes, float] = {}
    for request in puts:
        for record in request.records:
            if record.forwarded:
                taken_at.setdefault(payload_of(record.data), request.done_at)
    published = [(change.end_lsn, taken_at.get(change.payload, float("inf"))) for change in committed]
    for sample in samples:
        passed = [end for end, at in published if end <= sample.confirmed_lsn and at > sample.taken_at]
        assert not passed, (
            f"confirmed at {format_lsn(sample.confirmed_lsn)} while {len(passed)} changes up to"
            f" {format_lsn(passed[-1])} were not published"
        )


def assert_byte_for_byte(stream: Iterable[bytes], committed: Iterable[Committed]) -> None:
    """The stream holds what Postgres emitted, in quarantine or not, and nothing else."""
    published, wanted = {payload_of(data) for data in stream}, {change.payload for change in committed}
    assert len(wanted - published) == 0, f"missing: {_some(wanted - published)}"
    assert len(published - wanted) == 0, f"invented: {_some(published - wanted)}"


def payload_of(data: bytes) -> bytes:
    """What a record stands for: itself, or the quarantined payload that it points to."""
    if not data.startswith(b'{"action":"Q"'):
        return data
    quarantined = json.loads(data)["quarantined"]
    payload = Path(unquote(urlsplit(quarantined["url"]).path)).read_bytes()
    assert quarantined["sha256"] == hashlib.sha256(payload).hexdigest()
    assert quarantined["bytes"] == len(payload)
    return payload


def _changes(frames: Iterable[str]) -> Iterator[Committed]:
    end_lsn = 0
    for frame in frames:
        if frame.startswith('{"action":"B"'):
            end_lsn = parse_lsn(json.loads(frame)["nextlsn"])
        elif not frame.startswith('{"action":"C"'):
            yield Committed(end_lsn, frame.encode())


def _some(payloads: Iterable[bytes]) -> list[bytes]:
    return [payload[:_SHOWN_BYTES] for payload in sorted(payloads)[:5]]

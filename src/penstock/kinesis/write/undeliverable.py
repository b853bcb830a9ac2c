"""What happens to a record that Kinesis can't take: it blocks, or it is quarantined. It is never dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from penstock.abandonable import in_daemon_thread
from penstock.decoding.decoder import Summary
from penstock.kinesis.marked.pointer import pointer_record
from penstock.kinesis.write.event import ChangeEvent
from penstock.kinesis.write.quarantine import (
    TOO_LARGE,
    QuarantineError,
    QuarantineStore,
    object_name,
)
from penstock.status.health import Fault, Health
from penstock.status.metrics import CaptureMetrics

REFUSED = "refused_by_kinesis"
REFUSAL_PATIENCE_S = 30.0
"""How long a record that Kinesis refuses is tried again under `block`."""

_log = structlog.get_logger()


class UndeliverablePolicy:
    """Applies UNDELIVERABLE_POLICY. Without a store the policy is `block`."""

    def __init__(
        self,
        *,
        store: QuarantineStore | None,
        slot: str,
        summary: Callable[[bytes], Summary],
        health: Health,
        metrics: CaptureMetrics,
        backoff: Callable[[int], float],
    ) -> None:
        self._store = store
        self._slot = slot
        self._summary = summary
        self._health = health
        self._metrics = metrics
        self._backoff = backoff

    @property
    def blocks(self) -> bool:
        """Whether undeliverable records block."""
        return self._store is None

    async def stand_in(self, event: ChangeEvent) -> ChangeEvent:
        """A deliverable stand-in for an event that must not enter the queue, or one that parks its key."""
        reason = event.fault or TOO_LARGE
        if self._store is None:
            self.block(event, reason)
            # Nothing is lost with the payload: its ack_id stays unmarked, so Postgres keeps the change.
            event.payload = b""
            event.fault = reason
        else:
            await self.quarantine(event, reason)
            event.fault = None
        event.record_size_bytes = event.measure()
        return event

    def doubt(self, event: ChangeEvent, why: str) -> None:
        """Say that this record was refused, and that it is tried again before it counts as undeliverable."""
        self._health.set_fault(
            Fault.BLOCKED,
            f"Kinesis refused a record at {event.offset} ({why}); it is tried again for"
            f" {REFUSAL_PATIENCE_S:.0f} s before it counts as undeliverable",
        )

    @property
    def patience_s(self) -> float:
        """How long a refused record is tried again.

        A refusal may be the service's own passing fault. With a quarantine a needless file is all that it
        costs to believe it; without one, the record's key stands still until a new leadership.
        """
        return REFUSAL_PATIENCE_S if self.blocks else 0.0

    def block(self, event: ChangeEvent, reason: str) -> None:
        """Say loudly that this record holds the frontier."""
        self._metrics.blocked.inc()
        self._health.set_fault(
            Fault.BLOCKED,
            f"a record at {event.offset} can't be delivered ({reason}) and UNDELIVERABLE_POLICY is block."
            " Fix: raise the stream's record size and KINESIS_MAX_RECORD_BYTES, or set"
            " UNDELIVERABLE_POLICY=quarantine, and restart",
        )
        _log.error("record_blocks", reason=reason, **self._described(event))

    async def quarantine(self, event: ChangeEvent, reason: str) -> None:
        """Store the payload durably, then put a pointer in its place; retries until it is stored."""
        assert self._store is not None, "quarantine needs a store"
        # As the plugin wrote it: what is kept must not depend on the leadership that met it.
        payload = event.payload
        name = object_name(self._slot, event.offset, payload)
        url = await self._store_for_sure(self._store, name, payload, event)
        _log.warning("record_quarantined", reason=reason, url=url, **self._described(event))
        pointer = pointer_record(payload, self._summary(payload), url=url, reason=reason, offset=event.offset)
        event.payload = pointer
        event.is_pointer = True
        self._metrics.count_quarantined()

    async def _store_for_sure(
        self, store: QuarantineStore, name: str, payload: bytes, event: ChangeEvent
    ) -> str:
        attempt = 0
        while True:
            try:
                url = await in_daemon_thread(store.store, name, payload)
            except QuarantineError as error:
                self._health.set_fault(Fault.QUARANTINE, str(error))
                _log.error("quarantine_fails", error=str(error), attempt=attempt, **self._described(event))
                await asyncio.sleep(self._backoff(attempt))
                attempt += 1
            else:
                self._health.clear_fault(Fault.QUARANTINE)
                return url

    def _described(self, event: ChangeEvent) -> dict[str, object]:
        what = self._summary(event.payload)
        return {
            "position": str(event.offset),
            "bytes": len(event.payload),
            "table": None if what.table is None else f"{what.schema}.{what.table}",
            "action": what.action,
        }

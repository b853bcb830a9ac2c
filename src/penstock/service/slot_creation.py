"""A slot that had to be created: counted, and said."""

from __future__ import annotations

import structlog

from penstock.model.lsn import format_lsn
from penstock.postgres.slot.state import SlotState
from penstock.status.metrics import ServiceMetrics

_log = structlog.get_logger()


def say_slot_created(slot: SlotState, metrics: ServiceMetrics, *, note: str) -> None:
    """`note`: what it means for those who read what we write."""
    metrics.slot_creations.inc()
    _log.warning("slot_created", slot=slot.name, start_lsn=format_lsn(slot.start_lsn), note=note)

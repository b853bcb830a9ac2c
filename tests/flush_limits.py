"""The limits of a FlushPlan that tests look at: one snapshot at a time."""

from __future__ import annotations

from penstock.shapes.pace.flush_plan import FlushLimits


def flush_limits(*, flushes: int, pending_bytes: int, longest_backoff_s: float) -> FlushLimits:
    """These limits; a first failure is waited for a second."""
    return FlushLimits(
        flushes=flushes,
        snapshots=1,
        pending_bytes=pending_bytes,
        first_backoff_s=1.0,
        longest_backoff_s=longest_backoff_s,
    )

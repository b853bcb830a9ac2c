"""What is said of shapes that hold something up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import Final

from penstock.model.size import format_size
from penstock.postgres.slot.state import SlotState
from penstock.shapes.pace.flush_tracker import Stalled
from penstock.shapes.pace.shape_plan import ShapeState, ShapeStatus, StalledShape

LONG_JOB: Final = 10.0
"""A job that doesn't fail may take STALL_S times this. The shape that holds a full log gets as long if nobody
else has anything to write.
"""
_MUCH_WAL: Final = 1 << 30
_WRITES: Final = (ShapeState.FLUSHING, ShapeState.TENDING)


def complaints(
    stalled: Iterable[StalledShape],
    behind: Sequence[Stalled],
    *,
    log_is_full: bool,
    stall_s: float,
    log_is_half_full: bool = False,
    copied: Set[str] = frozenset(),
) -> dict[str, str]:
    """A sentence for each shape: those that are stalled, and the one that keeps a full log from emptying.

    One of those that are being `copied` is named at half of the log's bound already. A copy moves only at its
    end, and a long one can't be told from one that hangs, but for one whose rows nobody takes (`copy_watch`):
    any other only the operator can give up.

    `behind` are all shapes that are behind, the one that holds the slot first. It is left in peace for
    `stall_s`: one large transaction fills the log too, and is flushed.
    """
    found = {
        each.shape: f"shape {each.shape} has made no progress for {each.age_s:.0f} s, at {each.offset}:"
        f" {each.error or 'its job does not end'}."
        for each in stalled
    }
    if log_is_full and behind and behind[0].age_s >= stall_s:
        holder, age_s = behind[0].shape, behind[0].age_s
        why = found.get(holder, f"It is behind for {age_s:.0f} s.")
        found[holder] = f"the log is full, and shape {holder} holds it. {why}"
    elif log_is_half_full and behind and behind[0].age_s >= stall_s and behind[0].shape in copied:
        holder, age_s = behind[0].shape, behind[0].age_s
        found[holder] = (
            f"the log is half full, and shape {holder} holds it: its copy has taken {age_s:.0f} s so far."
            " If it hangs, see Spark's own page, and start penstock shapes again."
        )
    return found


def slot_holder(slot: SlotState | None, behind: Sequence[Stalled], *, stall_s: float) -> dict[str, str]:
    """The shape that keeps a slot which was left behind from being moved along, if that keeps much WAL.

    `behind` as above. Changes come from elsewhere, so nothing else shows that the server's disk fills up.
    """
    kept_bytes = 0 if slot is None else slot.retained_bytes or 0
    if slot is None or kept_bytes < _MUCH_WAL or not behind or behind[0].age_s < stall_s:
        return {}
    holder = behind[0].shape
    return {
        holder: f"slot {slot.name}, which was left behind, keeps {format_size(kept_bytes)} of WAL on the"
        f" server: it goes no further than shape {holder}, which is at {behind[0].offset}. Fix: mend"
        f" the shape, or, if you never go back to the slot, SELECT pg_drop_replication_slot('{slot.name}')."
    }


def failing_holder(
    statuses: Sequence[ShapeStatus], behind: Sequence[Stalled], *, log_is_full: bool, stall_s: float
) -> ShapeStatus | None:
    """The shape that keeps the log from emptying, if it has failed for `stall_s` and others don't.

    `behind` as above. One that is merely slow is left alone, unless its job has not ended after ten times as
    long: then it fails too. And where all fail, nobody is held by another. That others don't fail is proved
    by one whose table was written since the holder began to fail. Those that have had nothing to write prove
    nothing: the storage may be down. But once the log is full they are held too, as nothing is read then; so
    without any proof the holder is given ten times as long.
    """
    if not behind or behind[0].age_s < stall_s:
        return None
    holder = next(status for status in statuses if status.shape == behind[0].shape)
    well = [each for each in statuses if each.error is None and each is not holder]
    is_long = behind[0].age_s >= LONG_JOB * stall_s
    hangs = holder.state in _WRITES and is_long
    if not well or not (hangs or holder.state is ShapeState.BACKING_OFF):
        return None
    is_proved = any(each.wrote_s < max(holder.failing_s, behind[0].age_s * hangs) for each in well)
    return holder if is_proved or (log_is_full and is_long) else None

"""What can go wrong with the ChangeLog, and the sentence that an operator reads.

PenstockError
├── ChangeLogBroken      a write or sync failed: this log is finished, start another from the slot
├── ChangeLogTrimmed     a reader asks for changes that were deleted: it would miss them in silence
├── LogNotShared         an executor doesn't see the log that the driver writes
└── SegmentUnreadable    a segment doesn't hold what the plan promised
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from penstock.errors import PenstockError
from penstock.model.size import format_size

_FIXES = {
    errno.ENOSPC: "make room there, or put the log on a larger disk",
    errno.EDQUOT: "raise the quota, or put the log elsewhere",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f)",
    errno.EROFS: "mount it writable, or put the log elsewhere",
    errno.EACCES: "give this user the right to write there",
    errno.EPERM: "give this user the right to write there",
}


class ChangeLogBroken(PenstockError):
    """The log takes nothing more. What it called persisted still is; the rest comes again from the slot."""


class ChangeLogTrimmed(PenstockError):
    """A reader asks for changes behind a position, and some of them were deleted."""


class SegmentUnreadable(PenstockError):
    """A segment is missing, too short or damaged. Reading less in its place would be loss."""


class LogNotShared(PenstockError):
    """Executors don't see the log: what is too large for the driver to decode can't be flushed."""


def free_bytes(directory: Path) -> int:
    """The room that this user has left on the directory's disk."""
    disk = os.statvfs(directory)
    return disk.f_bavail * disk.f_frsize


def cant_write(path: Path, error: OSError) -> ChangeLogBroken:
    """The error of a failed system call: the path, the room left there, and the fix."""
    try:
        room = f" ({format_size(free_bytes(path.parent))} free there)"
    except OSError:
        room = ""
    fix = _FIXES.get(error.errno or 0, "see what its disk and the system's log say")
    return ChangeLogBroken(f"can't write {path}: {error.strerror or error}{room}; {fix}")


def under_the_floor(path: Path, free: int, floor: int) -> ChangeLogBroken:
    """The error of a write that was not tried, because it would leave too little room."""
    return ChangeLogBroken(
        f"won't write {path}: {format_size(free)} free there, and {format_size(floor)} must stay free; "
        f"{_FIXES[errno.ENOSPC]}"
    )


def not_shared(directory: Path, who: str) -> LogNotShared:
    """The error of a log that only the driver sees."""
    return LogNotShared(
        f"{who} can't read the log in {directory}, which the driver writes. Fix: set LOG_DIR to a mount"
        " that the driver and all executors share; until then only flushes below 1 MiB work"
    )

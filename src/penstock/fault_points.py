"""Fault points: named places at which a test lets the process die or stop, as if the machine had.

`PENSTOCK_FAULT_POINT=name` kills the process when it passes `name` for the first time, `name:3` at the third
time, and `name:1:stop` freezes it instead. Without the variable a fault point costs a comparison.
"""

from __future__ import annotations

import os
import signal
from typing import Final

VARIABLE: Final = "PENSTOCK_FAULT_POINT"

LOG_WRITTEN: Final = "log.written"
"""Changes are written to the log, and not yet synced."""
FLUSH_COMMITTED: Final = "flush.committed"
"""A flush is in the shape's table, and nobody has been told."""
SNAPSHOT_COPYING: Final = "snapshot.copying"
"""A snapshot has its cut, and its rows are on their way."""
SNAPSHOT_COMMITTED: Final = "snapshot.committed"
"""A snapshot is in the shape's table, and the registry still awaits it."""
COLUMNS_WIDENED: Final = "columns.widened"
"""Columns of a shape's table have more digits, and the flush that needs them has not begun."""
PARTITION_REMOVED: Final = "partition.removed"
"""The rows of a partition that is gone are deleted from a shape's table, and nobody has been told."""
REGISTRY_WRITTEN: Final = "registry.written"
"""The registry is on disk, and what it allows has not been done."""

_name, _, _rest = os.environ.get(VARIABLE, "").partition(":")
_times, _, _action = _rest.partition(":")
_remaining = int(_times or 1)


def reached(name: str) -> None:
    """The process passes a fault point."""
    global _remaining
    if name != _name:
        return
    _remaining -= 1
    if _remaining == 0:
        os.kill(os.getpid(), signal.SIGSTOP if _action == "stop" else signal.SIGKILL)

"""The processor time of a process and all that it has started."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from penstock.local.penstock_process import process_cpu_seconds


def tree_cpu_seconds(root: int) -> float:
    """User and system time so far; of those that have ended, too."""
    total = 0.0
    for pid in _tree(root):
        with suppress(OSError):  # a worker may end at any time
            total += process_cpu_seconds(pid, ended_children=True)
    return total


def _tree(root: int) -> list[int]:
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue
            parents[int(entry)] = int(stat.rpartition(")")[2].split()[1])
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found

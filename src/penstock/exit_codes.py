"""Every exit code of `penstock`, and what it says."""

from __future__ import annotations

from typing import Final

OK: Final = 0
"""Done; `check` found nothing that fails, `verify` no difference, `status` a process that is ready."""
FAILED: Final = 1
"""It ran and the answer is no: a check fails, tables differ, a shape stalls, a process is not ready."""
BAD_INPUT: Final = 2
"""It could not begin: a bad setting, file or argument; `verify` could not compare."""
ANOTHER_LEADS: Final = 3
"""`shapes --once` while another process leads."""
SPARK_GONE: Final = 4
"""Spark's Java has ended; only a new process helps."""

DEFECT: Final = 70
"""Penstock itself is at fault. The line on standard error says how; `--verbose` adds the traceback."""

MEANINGS: Final = {
    OK: "done; ready, equal, nothing that fails",
    FAILED: "it ran, and the answer is no: a check fails, tables differ, a process is not ready",
    BAD_INPUT: "it could not begin: a bad setting, file or argument, or nobody to ask",
    ANOTHER_LEADS: "`shapes --once` while another process leads",
    SPARK_GONE: "Spark's Java has ended; a new process helps",
    DEFECT: "a defect of Penstock; please report it, with --verbose",
}
"""In a few words, for help and docs. A process that a signal has ended has 128 and the signal's number."""


def killed_by(signal: int) -> int:
    """As shells say it of a process that a signal has ended."""
    return 128 + signal

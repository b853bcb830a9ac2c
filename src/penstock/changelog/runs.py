"""Runs: each leadership writes its log into a directory of its own, `<log>/<run id>/`.

A former leader that was frozen may wake up and go on writing, and its Spark tasks may still be reading; in
a directory of its own it can disturb nobody. What it leaves behind is removed later, by the lock's holder.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from penstock.changelog.errors import cant_write
from penstock.changelog.segment import SUFFIX
from penstock.durable import make_directory, sync_directory

OLD_RUN_MIN_AGE_S = 600.0

_RUN_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_SEGMENT = re.compile(rf"\d+{re.escape(SUFFIX)}")


class RemovedRuns(NamedTuple):
    """What came of removing older runs."""

    removed: list[str]
    failures: list[str]
    """A sentence for each run that should be gone and isn't; it will be tried again."""


def create_run(directory: Path, run_id: str) -> Path:
    """Make the directory of a new run, durably. Blocks. ChangeLogBroken if that fails or the run exists."""
    if not _RUN_ID.fullmatch(run_id):
        raise ValueError(f"not a run id: {run_id!r}")
    run = directory.absolute() / run_id
    try:
        make_directory(run.parent)
        run.mkdir(mode=0o700)
        sync_directory(run.parent)
    except OSError as error:
        raise cant_write(run, error) from error
    return run


def remove_older_runs(
    directory: Path, keep: str, now: float, min_age_s: float = OLD_RUN_MIN_AGE_S
) -> RemovedRuns:
    """Delete every run but `keep` in which nothing was written for `min_age_s` seconds. Blocks.

    Only the lock's holder may call this. `now` is wall-clock time, because file times are. A directory that
    holds anything but segments is not a run of ours, and stays.
    """
    outcome = RemovedRuns([], [])
    runs = sorted(directory.iterdir()) if directory.is_dir() else []
    for run in runs:
        if run.name == keep or run.is_symlink() or not run.is_dir():
            continue
        try:
            if _is_run(run) and now - _last_written(run) >= min_age_s:
                remove_run(run)
                outcome.removed.append(run.name)
        except OSError as error:
            outcome.failures.append(f"can't remove the old log {run}: {error.strerror or error}")
    return outcome


def remove_run(run: Path) -> None:
    """Delete one run: for an owner that has closed it and whose readers have all ended. Blocks."""
    for segment in sorted(run.iterdir()):
        segment.unlink(missing_ok=True)
    run.rmdir()


def _is_run(directory: Path) -> bool:
    entries = list(directory.iterdir())
    return all(_SEGMENT.fullmatch(path.name) and path.is_file() and not path.is_symlink() for path in entries)


def _last_written(run: Path) -> float:
    return max(path.stat().st_mtime for path in (run, *run.iterdir()))

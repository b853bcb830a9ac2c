"""A process that writes a ChangeLog until its disk is full, and a second one when there is room again.

    python -m tests.faults.change_log_filler DIRECTORY [FILE_LIMIT]

It prints a FullDisk in JSON. With a limit on file sizes, that is the full disk.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from penstock.changelog.errors import ChangeLogBroken
from penstock.changelog.log import ChangeLog
from penstock.changelog.runs import create_run, remove_run
from penstock.model.log_offset import BEFORE_ALL
from tests.change_log_rows import Row, rows_of
from tests.faults.change_log_writer import LIMITS, changes_of

SEED = 1
SECOND_LAST = 14


class FullDisk(msgspec.Struct):
    """What happened."""

    broken_at: int
    """The transaction in which it was."""
    error: str
    later_errors: list[str]
    persisted: int
    rows: list[Row]
    """What could still be read."""
    second_persisted: int


def fill(log: ChangeLog, last: int = sys.maxsize) -> int:
    """Write until something raises; returns the transaction that was next."""
    for tx_offset in range(1, last + 1):
        try:
            for relation, offset, payload in changes_of(SEED, tx_offset):
                log.append(relation, *offset, payload)
                if log.write_due:
                    log.write()
            log.commit(tx_offset)
            if tx_offset % 7 == 0:
                log.flush(now=tx_offset)
        except ChangeLogBroken:
            return tx_offset
    return last + 1


def refusal(call: Callable[[], object]) -> str:
    """The sentence of a call that must fail."""
    try:
        call()
    except ChangeLogBroken as error:
        return str(error)
    raise AssertionError("it was taken")


def main(directory: Path, file_limit: int) -> FullDisk:
    """Fill the disk, make room, and write again."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, resource.RLIM_INFINITY))
    run = create_run(directory, "run")
    log = ChangeLog(run, LIMITS)
    broken_at = fill(log)
    later_calls = (log.write, lambda: log.commit(broken_at), lambda: log.flush(now=0))
    error, *later = [refusal(call) for call in later_calls]
    persisted = log.last_persisted_txn_offset.tx_offset
    rows = rows_of(log.read_plan(None, BEFORE_ALL))
    log.close()

    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    remove_run(run)
    second = ChangeLog(create_run(directory, "run-2"), LIMITS)
    fill(second, SECOND_LAST)
    second_persisted = second.last_persisted_txn_offset.tx_offset
    return FullDisk(broken_at, error, later, persisted, rows, second_persisted)


if __name__ == "__main__":
    limit = int(sys.argv[2]) if len(sys.argv) > 2 else resource.RLIM_INFINITY
    sys.stdout.write(msgspec.json.encode(main(Path(sys.argv[1]), limit)).decode())

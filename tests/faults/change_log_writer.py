"""A process that writes a ChangeLog until it is killed, and says how far it got.

    python -m tests.faults.change_log_writer RUN_DIRECTORY SEED [FAULT NTH]

It prints `persisted TX` when a transaction is durable, and `trimming TX` before it trims. With a fault it
kills itself at the n-th system call of that name: before it, after it, or in the middle of a write.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from penstock.changelog.log import ChangeLog, LogLimits
from penstock.model.log_offset import LogOffset
from penstock.model.relation import Relation
from tests.change_log_rows import Row, txn

LIMITS = LogLimits(min_free_bytes=0, segment_bytes=30_000, buffer_bytes=4_000)
FAULTS = (
    "before open",
    "after open",
    "in write",
    "after write",
    "before fdatasync",
    "after fdatasync",
    "before fsync",
    "after fsync",
    "before unlink",
    "after unlink",
)
"""`open` makes a segment, `fsync` is of the directory, `unlink` trims."""


def changes_of(seed: int, tx_offset: int) -> list[Row]:
    """The changes of a transaction: the same ones for whoever asks."""
    source = random.Random(seed * 1_000_003 + tx_offset)
    number = source.choice([1, 1, 2, 5, 60])
    return [
        (
            Relation("public", f"table_{source.randrange(5)}"),
            LogOffset(tx_offset, 2 * place),
            source.randbytes(source.randrange(300)),
        )
        for place in range(number)
    ]


def write_for_ever(run: Path, seed: int) -> None:
    """Write, flush now and then, and trim what is some time ago."""
    log = ChangeLog(run, LIMITS)
    for tx_offset in count(1):
        for relation, offset, payload in changes_of(seed, tx_offset):
            log.append(relation, *offset, payload)
            if log.write_due:
                report(log.write())
        log.commit(tx_offset)
        if tx_offset % 7 == 0:
            report(log.flush(now=tx_offset))
        if tx_offset % 50 == 0:
            say(f"trimming {tx_offset - 40}")
            log.trim(txn(tx_offset - 40))


def report(moved: LogOffset | None) -> None:
    """Say what became durable."""
    if moved is not None:
        say(f"persisted {moved.tx_offset}")


def say(line: str) -> None:
    """To the pipe at once: nothing may be said late, and nothing that is said may be lost."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def die(*_: object) -> None:
    """As by kill -9."""
    os.kill(os.getpid(), signal.SIGKILL)


def plant(fault: str, nth: int) -> None:
    """Let the n-th call of a system call be the last."""
    place, name = fault.split()
    original: Callable[..., Any] = getattr(os, name)
    calls = count(1)

    def deadly(*args: Any, **options: Any) -> Any:
        if name == "open" and not args[1] & os.O_CREAT:
            return original(*args, **options)
        is_last = next(calls) == nth
        if is_last and place == "before":
            die()
        if is_last and place == "in":
            original(args[0], args[1][: len(args[1]) // 2])
            die()
        result = original(*args, **options)
        if is_last:
            die()
        return result

    setattr(os, name, deadly)


if __name__ == "__main__":
    if len(sys.argv) > 3:
        plant(sys.argv[3], int(sys.argv[4]))
    write_for_ever(Path(sys.argv[1]), int(sys.argv[2]))

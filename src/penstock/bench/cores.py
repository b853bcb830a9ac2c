"""A core of one's own, for what is measured."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_core_apart() -> Iterator[int | None]:
    """Keep this process, and what it starts inside, off one core; gives it, or None if there is no other."""
    cores = os.sched_getaffinity(0)
    apart = min(cores)
    if len(cores) == 1:
        yield None
        return
    os.sched_setaffinity(0, cores - {apart})
    try:
        yield apart
    finally:
        os.sched_setaffinity(0, cores)

"""Blocking calls that hang must hold up neither their caller nor the end of the process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time

import pytest

from penstock.abandonable import DaemonThreads, in_daemon_thread

_HANGING_PROCESS = """
import asyncio, time
from penstock.abandonable import DaemonThreads, in_daemon_thread

async def main():
    threads = DaemonThreads(2, name="test")
    hanging = threads.submit(time.sleep, 60)
    task = asyncio.create_task(in_daemon_thread(time.sleep, 60))
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.wait([task])
    threads.dismiss()
    print("left", task.cancelled(), hanging.done(), flush=True)

asyncio.run(main())
"""


async def test_a_call_gives_its_result_or_its_error() -> None:
    assert await in_daemon_thread(int, "42") == 42
    with pytest.raises(ValueError, match="invalid literal"):
        await in_daemon_thread(int, "x")


async def test_a_cancellation_does_not_wait_for_the_call() -> None:
    release = threading.Event()
    task = asyncio.create_task(in_daemon_thread(release.wait, 30))
    await asyncio.sleep(0.01)

    started = time.monotonic()
    task.cancel()
    await asyncio.wait([task])

    assert task.cancelled()
    assert time.monotonic() - started < 5
    release.set()


def test_a_process_ends_while_its_calls_hang() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _HANGING_PROCESS], capture_output=True, text=True, timeout=20, check=True
    )
    assert done.stdout.split() == ["left", "True", "False"]
    assert done.stderr == ""


async def test_a_pool_reuses_its_threads_and_starts_no_more_than_it_may() -> None:
    threads = DaemonThreads(2, name="pool")
    alone = [await threads.submit(threading.get_ident) for _ in range(20)]
    assert len(set(alone)) == 1

    meet = threading.Barrier(2)

    def together() -> int:
        meet.wait(5)
        return threading.get_ident()

    both = await asyncio.gather(*(threads.submit(together) for _ in range(6)))
    assert len(set(both)) == 2
    threads.dismiss()


async def test_a_pool_hands_on_errors() -> None:
    threads = DaemonThreads(1, name="pool")
    with pytest.raises(ZeroDivisionError):
        await threads.submit(divmod, 1, 0)
    assert await threads.submit(divmod, 7, 2) == (3, 1)
    threads.dismiss()

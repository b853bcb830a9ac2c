"""Fault points, each in a process of its own: they end it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

PROGRAM = "from penstock import fault_points as f\nfor n in range(4): f.reached('a'); print(n, flush=True)"


def run(point: str | None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PENSTOCK_FAULT_POINT": point} if point is not None else dict(os.environ)
    return subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=30
    )


@pytest.mark.parametrize(("point", "passed"), [("a", ""), ("a:1", ""), ("a:3", "0\n1\n")])
def test_the_process_dies_at_its_point(point: str, passed: str) -> None:
    done = run(point)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, passed)


@pytest.mark.parametrize("point", [None, "", "b", "a:5"])
def test_without_it_nothing_happens(point: str | None) -> None:
    done = run(point)
    assert (done.returncode, done.stdout) == (0, "0\n1\n2\n3\n"), done.stderr


def test_it_may_freeze_instead() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env={**os.environ, "PENSTOCK_FAULT_POINT": "a:2:stop"}
    )
    try:
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()

"""The handle on a child process, tried on small shell scripts in place of `penstock`."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.local.penstock_process import PenstockProcess, ProcessFailed

SHELL = ("/bin/sh", "-c")
WITH_A_CHILD = 'sleep 600 & echo "{\\"event\\": \\"child\\", \\"pid\\": $!}"; wait'
PARENT = f"""
import time
from penstock.local.penstock_process import PenstockProcess
process = PenstockProcess([{WITH_A_CHILD!r}], {{}}, program={SHELL!r})
(child,) = process.wait_until(lambda: process.events("child"), "a child", 20.0)
print(process.pid, child["pid"], process._log, flush=True)
time.sleep(600)
"""

Run = Callable[[str], PenstockProcess]


@pytest.fixture
def run() -> Iterator[Run]:
    started: list[PenstockProcess] = []

    def run(script: str) -> PenstockProcess:
        started.append(PenstockProcess([script], {}, program=SHELL))
        return started[-1]

    yield run
    for process in started:
        process.close()


def assert_ends(handle: int) -> None:
    ended, _, _ = select.select([handle], [], [], 20)
    os.close(handle)
    assert ended, "it still runs"


def test_events_are_the_whole_structured_lines(run: Run) -> None:
    lines = ("noise", '{"event": "a", "of": "b"}', '{"event": "b"}', '{"no": "b"}', '["b"]', '{"event": "b')
    process = run("printf '%s' '" + "\n".join(lines) + "'")
    process.wait()
    assert process.events() == [{"event": "a", "of": "b"}, {"event": "b"}]
    assert process.events("b") == [{"event": "b"}]
    assert process.log_tail(2) == "\n".join(lines[-2:])


def test_waits_for_an_answer_that_is_true(run: Run) -> None:
    answers = iter([None, 0, 7])
    assert run("exec sleep 600").wait_until(lambda: next(answers), "an answer", 20.0, poll_s=0.0) == 7


def test_a_wait_ends_with_the_process_or_the_time(run: Run) -> None:
    with pytest.raises(ProcessFailed, match=r"^penstock ended \(3\) before a miracle:\nlast words$"):
        run("echo last words; exit 3").wait_until(lambda: False, "a miracle", 20.0)
    with pytest.raises(ProcessFailed, match=r"^not within 0 s: a miracle:"):
        run("exec sleep 600").wait_until(lambda: False, "a miracle", 0.0)


def test_what_was_done_before_the_end_is_seen(run: Run) -> None:
    process = run("exit 0")
    process.wait()
    assert process.wait_until(lambda: True, "anything", 0.0)


def test_ends_by_itself_if_it_does_so_in_time(run: Run) -> None:
    polite = run("""trap 'exit 5' TERM; echo '{"event": "ready"}'; while :; do sleep 0.01; done""")
    polite.wait_until(lambda: polite.events("ready"), "ready", 20.0)
    polite.end(20.0)
    deaf = run("""trap '' TERM; echo '{"event": "ready"}'; while :; do sleep 0.01; done""")
    deaf.wait_until(lambda: deaf.events("ready"), "ready", 20.0)
    deaf.end(0.1)
    assert (polite.exit_code, deaf.exit_code) == (5, -9)


def test_what_it_started_is_killed_with_it(run: Run) -> None:
    process = run(WITH_A_CHILD)
    (child,) = process.wait_until(lambda: process.events("child"), "a child", 20.0)
    handle = os.pidfd_open(child["pid"])
    process.kill9()
    assert_ends(handle)
    assert process.exit_code == -9


def test_neither_outlives_a_parent_that_is_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid, child, log = parent.stdout.readline().split()
    handles = [os.pidfd_open(int(pid)), os.pidfd_open(int(child))]
    parent.kill()
    parent.communicate()  # the guard holds the other end of the pipe until it is done
    for handle in handles:
        assert_ends(handle)
    assert not Path(log).exists()


def test_logs_where_it_is_told_to_and_prints_elsewhere(tmp_path: Path) -> None:
    log, output = tmp_path / "a.log", tmp_path / "answer"
    with PenstockProcess(
        ["pwd; echo trouble >&2"], {}, program=SHELL, directory=tmp_path, log=log, output=output
    ) as process:
        process.wait()
    assert (log.read_text(), output.read_text()) == ("trouble\n", f"{tmp_path}\n")


def test_an_ended_process_has_no_memory_and_no_ops_port(run: Run) -> None:
    process = run("exit 0")
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(ProcessFailed, match="no VmRSS of an ended process"):
        process.rss_bytes()
    with pytest.raises(ConnectionRefusedError):
        process.get("/livez")

"""`penstock demo` as somebody runs it in a pipe: proved, spoilt, interrupted, or with a process that dies."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from penstock.ops.status_command import ask

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a demo; one that still runs after the test is ended."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "demo", *arguments],
            # Variables for another database, and a colourful CI: neither may reach the demo.
            env={**os.environ, "PGHOST": "elsewhere.invalid", "PGSSLMODE": "require", "FORCE_COLOR": "1"},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def read_until(process: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(pattern, line):
            return found
    raise AssertionError(f"the demo ended without {pattern!r}: {process.communicate()}")


def read_all_until(process: subprocess.Popen[str], end: str) -> str:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if end in line:
            return "".join(lines)
    raise AssertionError(f"the demo ended: {''.join(lines)}\n{process.communicate()}")


def count(output: str, label: str) -> int:
    found = re.search(rf"^  {label} +([\d,]+) ", output, re.MULTILINE)
    assert found, output
    return int(found[1].replace(",", ""))


def await_end_of(pid: int) -> None:
    deadline = time.monotonic() + 10
    while stat_of(pid)[0] not in "XZ":
        assert time.monotonic() < deadline, f"process {pid} still runs"
        time.sleep(0.02)


def stat_of(pid: int) -> list[str]:
    """The process's state, its parent, its group, and so on; X if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ["X", "", ""]


def group_of(pid: int) -> list[int]:
    """A process and what it has started, such as the Java of a Spark."""
    everybody = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
    return [each for each in everybody if stat_of(each)[2] == str(pid)]


def lose_a_row(table: Path) -> dict[str, int]:
    """Delete a row behind Penstock's back that nobody will touch again; gives its key."""
    while True:
        lake = DeltaTable(str(table))
        key: dict[str, int] = min(
            lake.to_pyarrow_table(columns=["order_id", "line"]).to_pylist(),
            key=lambda row: tuple(row.values()),
        )
        try:
            lake.delete(" AND ".join(f"{name} = {value}" for name, value in key.items()))
        except CommitFailedError:
            continue  # the service was quicker
        return key


@pytest.mark.timeout(600)
def test_proves_that_nothing_is_lost_when_leaders_are_killed(start: Start, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("WAL2JSON_FILTER_TABLES=public.orders\n")
    process = start("--seconds", "6", "--stay")
    output = read_all_until(process, "Ctrl-C ends it all")
    # Everything still runs, and says so.
    pages = re.findall(r"^  (capture|shapes) [A-C] +(http://127\.0\.0\.1:\d+/)$", output, re.MULTILINE)
    assert [service for service, _ in pages] == ["capture", "shapes", "capture"]
    assert [ask(page.rstrip("/")).phase for _, page in pages] == ["streaming", "streaming", "standby"]
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=60)
    assert (process.returncode, rest, errors) == (0, "ending everything\n", ""), output
    assert "Proved: every committed change is in the stream, and the lake tables equal Postgres" in output
    assert count(output, "committed") > 500
    assert count(output, "published") == count(output, "committed") + count(output, "duplicate")
    faults = ("missing", "invented", "disordered", "differing", "torn", "unwitnessed")
    assert [count(output, label) for label in faults] == [0] * len(faults)
    takeover = re.search(r"capture B leads, ([\d.]+) s after the kill", output)
    assert takeover, output
    assert f"takeover       {takeover[1]} s" in output
    assert "kill -9 of shapes A and its Spark" in output
    for shape in ("order_lines", "open_orders", "customers"):
        rows = count(output, shape)
        assert rows > 0
        assert f"rows, {rows:,} in the lake: 0 different, 0 missing, 0 extra" in output
    assert "\x1b" not in output


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_row_that_is_missing_from_the_lake_is_found(start: Start) -> None:
    process = start("--seconds", "4")
    shapes = int(read_until(process, r"shapes A \(pid (\d+)\)")[1])
    directory = Path(f"/proc/{shapes}/cwd").readlink()
    read_until(process, r"shapes B goes on where the tables stand")
    key = lose_a_row(directory / "lake" / "order_lines")
    output, errors = process.communicate(timeout=590)
    assert (process.returncode, errors) == (1, ""), output
    assert "FAILED: the lake tables are not what Postgres holds" in output
    assert "0 different, 1 missing, 0 extra" in output
    assert f"order_lines: missing order_id={key['order_id']}, line={key['line']}" in output


@pytest.mark.timeout(300)
def test_ctrl_c_ends_everything(start: Start) -> None:
    process = start()
    port = int(read_until(process, r"wal2json, on port (\d+)")[1])
    shapes = int(read_until(process, r"shapes A \(pid (\d+)\)")[1])
    captures = [int(read_until(process, rf"capture {name} \(pid (\d+)\)")[1]) for name in "AB"]
    read_until(process, r"commits/s")
    spark = group_of(shapes)
    assert len(spark) > 1, "Java is in the group"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "")
    for pid in (*captures, *spark):
        await_end_of(pid)
    listening = subprocess.run(["grep", "-c", f":{port:04X} 00000000:0000 0A", "/proc/net/tcp"], check=False)
    assert listening.returncode == 1, "Postgres still listens"


def test_a_process_that_dies_is_named_with_the_end_of_its_log(start: Start) -> None:
    process = start()
    standby = int(read_until(process, r"capture B \(pid (\d+)\) stands by")[1])
    os.kill(standby, signal.SIGKILL)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert f"capture B (pid {standby}) ended unexpectedly, exit code -9" in errors
    assert '"event": "standby"' in errors
    assert "Traceback" not in errors


def test_without_postgres_one_sentence_says_what_to_install(tmp_path: Path) -> None:
    program = (
        "import sys; from penstock.cli import main; from penstock.local import postgres_programs\n"
        "postgres_programs._candidates = lambda: iter(())\n"
        "sys.exit(main(['demo']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert re.fullmatch(r"no PostgreSQL server programs found; .*apt-get install.*\n", done.stderr)

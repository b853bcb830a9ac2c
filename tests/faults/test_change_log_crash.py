"""The ChangeLog's writer dies, its machine loses power, its disk is full: what was called durable is."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path

import msgspec
import pytest

from penstock.changelog.log import ChangeLog
from penstock.changelog.runs import create_run
from penstock.changelog.scan import ScannedRun, scan_run
from penstock.model.log_offset import LAST_BEFORE_REAL, LogOffset
from tests.change_log_rows import Row, rows_of, txn
from tests.faults.change_log_filler import SECOND_LAST, SEED, FullDisk
from tests.faults.change_log_writer import FAULTS, LIMITS, changes_of

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {"PYTHONPATH": ":".join([str(ROOT), *sys.path]), "PATH": os.environ["PATH"]}


def run_until_dead(run: Path, seed: int, *fault: str, kill_after_lines: int | None = None) -> list[str]:
    """What the writer said in its life."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.faults.change_log_writer", str(run), str(seed), *fault],
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        cwd=ROOT,
    ) as writer:
        assert writer.stdout is not None
        lines = list(islice(writer.stdout, kill_after_lines))
        if kill_after_lines:
            writer.kill()
        lines += writer.stdout.readlines()
    assert writer.returncode == -signal.SIGKILL
    return [line.rstrip("\n") for line in lines if line.endswith("\n")]


def last_said(lines: list[str], word: str) -> LogOffset:
    said = [txn(int(line.split()[1])) for line in lines if line.startswith(word)]
    return max(said, default=LAST_BEFORE_REAL)


def expected_rows(seed: int, after: LogOffset, up_to: LogOffset) -> list[Row]:
    transactions = range(after.tx_offset + 1, up_to.tx_offset + 1)
    return [row for tx_offset in transactions for row in changes_of(seed, tx_offset)]


def check_survivors(scanned: ScannedRun, lines: list[str], seed: int) -> None:
    assert scanned.last_txn_offset >= last_said(lines, "persisted")
    assert scanned.begins_after <= last_said(lines, "trimming")
    found = rows_of(scanned.read_plan(None, LAST_BEFORE_REAL))
    assert found == expected_rows(seed, scanned.begins_after, scanned.last_txn_offset)


class TestKilled:
    @pytest.mark.parametrize("seed", range(4))
    def test_at_any_moment(self, tmp_path: Path, seed: int) -> None:
        run = create_run(tmp_path, "run")
        lines = run_until_dead(run, seed, kill_after_lines=random.Random(seed).randrange(1, 150))

        assert last_said(lines, "persisted") > LAST_BEFORE_REAL
        check_survivors(scan_run(run), lines, seed)

    @pytest.mark.parametrize("fault", FAULTS)
    def test_at_a_system_call(self, tmp_path: Path, fault: str) -> None:
        for nth in (1, 2, 5):
            run = create_run(tmp_path, f"run-{nth}")
            lines = run_until_dead(run, nth, fault, str(nth))
            check_survivors(scan_run(run), lines, seed=nth)


class PoweredDisk:
    """Knows what a disk keeps when its power fails: synced bytes of files whose names are synced.

    Of the rest anything may be left: nothing, the beginning, or zeros in its place.
    """

    def __init__(self, run: Path, patch: pytest.MonkeyPatch) -> None:
        self.run = run
        self.synced_bytes: dict[str, int] = {}
        self.synced_names: set[str] = set()
        self.paths: dict[int, str] = {}
        self.originals = {name: getattr(os, name) for name in ("open", "fdatasync", "fsync")}
        for name in self.originals:
            patch.setattr(os, name, getattr(self, name))

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        descriptor: int = self.originals["open"](path, flags, mode)
        self.paths[descriptor] = str(path)
        if flags & os.O_CREAT:
            self.synced_bytes[path.name] = 0
        return descriptor

    def fdatasync(self, descriptor: int) -> None:
        self.synced_bytes[Path(self.paths[descriptor]).name] = os.fstat(descriptor).st_size

    def fsync(self, descriptor: int) -> None:
        assert self.paths[descriptor] == str(self.run)
        self.synced_names = {path.name for path in self.run.iterdir()}

    def after_power_loss(self, target: Path, source: random.Random) -> Path:
        target.mkdir()
        for path in self.run.iterdir():
            if path.name in self.synced_names or source.random() < 0.5:
                content = path.read_bytes()
                safe = self.synced_bytes[path.name]
                written = source.randint(safe, len(content))
                zeros = source.choice([0, 0, len(content) - written])
                (target / path.name).write_bytes(content[:written] + bytes(zeros))
        return target


class TestPowerLoss:
    @pytest.mark.parametrize("seed", [0, 1, 2, 101])
    def test_what_was_called_persisted_is_on_the_disk(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
    ) -> None:
        run = create_run(tmp_path, "run")
        disk = PoweredDisk(run, monkeypatch)
        log = ChangeLog(run, LIMITS)
        source = random.Random(seed)
        boundaries = set()
        for tx_offset in range(1, 80):
            for relation, offset, payload in changes_of(seed, tx_offset):
                log.append(relation, *offset, payload)
                if log.write_due:
                    log.write()
            log.commit(tx_offset)
            if source.random() < 0.2:
                log.flush(now=tx_offset)
            survivors = scan_run(disk.after_power_loss(tmp_path / f"cut-{tx_offset}", source))

            promised = log.last_persisted_txn_offset
            boundaries.add(promised)
            assert survivors.last_txn_offset >= promised
            found = rows_of(survivors.read_plan(None, LAST_BEFORE_REAL, promised))
            assert found == expected_rows(seed, LAST_BEFORE_REAL, promised)
        log.close()
        assert len(boundaries) > 10


class TestFullDisk:
    def fill(self, directory: Path, *arguments: str, prefix: tuple[str, ...] = ()) -> FullDisk:
        program = [sys.executable, "-m", "tests.faults.change_log_filler", str(directory), *arguments]
        done = subprocess.run(
            [*prefix, *program],
            env=ENVIRONMENT,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return msgspec.json.decode(done.stdout, type=FullDisk)

    def check(self, full: FullDisk) -> None:
        assert full.later_errors == [full.error] * 2, "it stays broken, and says why"
        assert 0 < full.persisted < full.broken_at
        assert full.rows == expected_rows(SEED, LAST_BEFORE_REAL, txn(full.persisted))
        assert full.second_persisted == SECOND_LAST, "a new log works when there is room again"

    def test_a_small_file_system(self, tmp_path: Path) -> None:
        """In a mount namespace of its own, so that nothing stays mounted."""
        mount = 'mount -t tmpfs -o size=100k none "$0"'
        namespace = ("unshare", "--map-root-user", "--mount", "sh", "-c")
        if subprocess.run([*namespace, mount, tmp_path], check=False, capture_output=True).returncode:
            pytest.skip("this user may not mount a tmpfs; the limit on file sizes has to do")

        full = self.fill(tmp_path, prefix=(*namespace, f'{mount} && exec "$@"', str(tmp_path)))

        self.check(full)
        assert re.fullmatch(
            rf"can't write {tmp_path}/run/\d+.arrows: No space left on device \([\d.]+ k?B free there\); "
            "make room there, or put the log on a larger disk",
            full.error,
        )

    def test_a_limit_on_file_sizes(self, tmp_path: Path) -> None:
        full = self.fill(tmp_path, "20000")

        self.check(full)
        assert re.fullmatch(
            rf"can't write {tmp_path}/run/\d+.arrows: File too large \([\d.]+ [MGT]B free there\); "
            r"raise the limit on file sizes \(ulimit -f\)",
            full.error,
        )

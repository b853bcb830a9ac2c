from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from penstock.changelog.errors import ChangeLogBroken
from penstock.changelog.log import ChangeLog
from penstock.changelog.runs import create_run, remove_older_runs
from tests.change_log_rows import (
    LIMITS,
    ORDERS,
    append_transaction,
)


class TestRuns:
    NOW = 2_000_000_000.0

    def make_run(self, log_directory: Path, run_id: str, age_s: float) -> Path:
        run = create_run(log_directory, run_id)
        log = ChangeLog(run, LIMITS)
        append_transaction(log, 10, ORDERS)
        log.flush(now=0)
        log.close()
        for path in (*run.iterdir(), run):
            os.utime(path, (self.NOW - age_s, self.NOW - age_s))
        return run

    def test_a_run_gets_a_directory_of_its_own(self, tmp_path: Path) -> None:
        run = create_run(tmp_path / "a" / "log", "run-1")

        assert run == tmp_path / "a" / "log" / "run-1"
        with pytest.raises(ChangeLogBroken, match=f"can't write {run}: File exists"):
            create_run(tmp_path / "a" / "log", "run-1")

    @pytest.mark.parametrize("run_id", ["", ".", "..", "a/b", ".hidden", "a\0", "x" * 101, "-x"])
    def test_a_run_id_is_a_plain_name(self, tmp_path: Path, run_id: str) -> None:
        with pytest.raises(ValueError, match="not a run id"):
            create_run(tmp_path, run_id)

    def test_old_runs_go_and_young_ones_stay(self, tmp_path: Path) -> None:
        for run_id, age_s in (("kept", 9_999), ("old", 600), ("young", 599), ("ahead", -3_600)):
            self.make_run(tmp_path, run_id, age_s)

        assert remove_older_runs(tmp_path, "kept", self.NOW) == (["old"], [])

        assert sorted(path.name for path in tmp_path.iterdir()) == ["ahead", "kept", "young"]

    def test_one_young_segment_keeps_a_run(self, tmp_path: Path) -> None:
        run = self.make_run(tmp_path, "frozen", 9_999)
        (segment_path,) = run.iterdir()
        os.utime(segment_path, (self.NOW, self.NOW))

        assert remove_older_runs(tmp_path, "kept", self.NOW).removed == []
        assert remove_older_runs(tmp_path, "kept", self.NOW, min_age_s=0).removed == ["frozen"]

    def test_a_run_that_died_before_its_first_segment_goes(self, tmp_path: Path) -> None:
        run = create_run(tmp_path, "empty")
        os.utime(run, (0, 0))

        assert remove_older_runs(tmp_path, "kept", self.NOW).removed == ["empty"]

    def test_what_is_not_a_run_stays(self, tmp_path: Path) -> None:
        run = self.make_run(tmp_path, "with-notes", 9_999)
        (run / "notes.txt").write_text("mine")
        (tmp_path / "deep" / "0000000001.arrows").mkdir(parents=True)
        (tmp_path / "file").write_text("mine")
        elsewhere = self.make_run(tmp_path / "elsewhere", "run", 9_999)
        (tmp_path / "link").symlink_to(elsewhere)
        before = sorted(tmp_path.rglob("*"))

        assert remove_older_runs(tmp_path, "kept", self.NOW * 2) == ([], [])

        assert sorted(tmp_path.rglob("*")) == before

    def test_a_run_that_can_not_be_removed_is_named_and_the_others_go(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for run_id in ("a", "b"):
            self.make_run(tmp_path, run_id, 9_999)
        rmdir = Path.rmdir

        def refuse_a(path: Path) -> None:
            if path.name == "a":
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            rmdir(path)

        monkeypatch.setattr(Path, "rmdir", refuse_a)

        assert remove_older_runs(tmp_path, "kept", self.NOW) == (
            ["b"],
            [f"can't remove the old log {tmp_path}/a: Permission denied"],
        )

    def test_no_directory_yet(self, tmp_path: Path) -> None:
        assert remove_older_runs(tmp_path / "log", "kept", self.NOW) == ([], [])

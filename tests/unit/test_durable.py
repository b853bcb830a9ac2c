"""Durable files: what has a name is whole, and nothing is left of what failed."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from penstock.durable import make_directory, nearest_existing, try_to_write, write_whole


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


class TestWriteWhole:
    def test_it_replaces_what_was_there(self, tmp_path: Path) -> None:
        target = tmp_path / "registry.json"
        write_whole(target, b"one, and longer")
        write_whole(target, b"two")

        assert target.read_bytes() == b"two"
        assert names(tmp_path) == ["registry.json"]

    def test_what_a_crash_left_of_this_name_goes_and_of_others_stays(self, tmp_path: Path) -> None:
        for leftover in (".registry.json.abc.partial", ".other.json.abc.partial", "registry.json.bak"):
            (tmp_path / leftover).write_bytes(b"half")

        write_whole(tmp_path / "registry.json", b"whole")

        assert names(tmp_path) == [".other.json.abc.partial", "registry.json", "registry.json.bak"]

    @pytest.mark.parametrize("step", ["fsync", "rename"])
    def test_one_that_fails_leaves_the_old_one_and_nothing_else(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
    ) -> None:
        target = tmp_path / "registry.json"
        write_whole(target, b"old")

        def fails(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, step, fails)
        with pytest.raises(OSError, match="No space left"):
            write_whole(target, b"new")

        assert target.read_bytes() == b"old"
        assert names(tmp_path) == ["registry.json"]

    def test_content_is_on_disk_before_it_has_its_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        steps: list[tuple[str, int]] = []
        fsync, rename = os.fsync, os.rename

        def noted_fsync(descriptor: int) -> None:
            steps.append(("fsync", os.fstat(descriptor).st_size))
            fsync(descriptor)

        def noted_rename(source: str, target: Path) -> None:
            steps.append(("rename", Path(source).stat().st_size))
            rename(source, target)

        monkeypatch.setattr(os, "fsync", noted_fsync)
        monkeypatch.setattr(os, "rename", noted_rename)
        write_whole(tmp_path / "file", b"seven b")

        assert steps == [("fsync", 7), ("rename", 7)]


class TestMakeDirectory:
    def test_missing_parents_are_made_for_this_user_alone(self, tmp_path: Path) -> None:
        make_directory(tmp_path / "a" / "b")

        assert [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a", tmp_path / "a" / "b")] == [
            0o700,
            0o700,
        ]

    def test_one_that_is_there_stays_as_it_is(self, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir(mode=0o755)
        make_directory(tmp_path / "a")

        assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o755


class TestTryToWrite:
    def test_a_directory_that_is_there(self, tmp_path: Path) -> None:
        assert try_to_write(tmp_path) == tmp_path
        assert names(tmp_path) == []

    def test_the_nearest_one_above_stands_for_a_missing_one(self, tmp_path: Path) -> None:
        assert try_to_write(tmp_path / "a" / "b") == tmp_path
        assert names(tmp_path) == []

    def test_a_file_in_the_way(self, tmp_path: Path) -> None:
        (tmp_path / "a").touch()
        with pytest.raises(NotADirectoryError):
            try_to_write(tmp_path / "a" / "b")

    def test_a_relative_path_has_parents_too(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert nearest_existing(Path("lake") / "orders") == tmp_path

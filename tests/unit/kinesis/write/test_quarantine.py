from __future__ import annotations

import pickle
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from penstock.errors import PenstockError
from penstock.kinesis.write.quarantine import FileQuarantine, QuarantineError, object_name
from penstock.kinesis.write.quarantine_places import open_quarantine
from penstock.model.log_offset import OP_INFINITY, LogOffset

PAYLOAD = b'{"action":"I","columns":[{"name":"secret","value":"hunter2"}]}' * 1000


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def run_store(prepare: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Store PAYLOAD as `one` in a process of its own, after `prepare`; prints what came of it."""
    script = f"""
import os, resource, signal, sys
from pathlib import Path
from penstock.kinesis.write.quarantine import FileQuarantine, QuarantineError
payload = sys.stdin.buffer.read()
quarantine = FileQuarantine(Path({str(directory)!r}))
{prepare}
try:
    print(quarantine.store("one", payload))
except QuarantineError as error:
    print("refused:", error)
"""
    return subprocess.run(
        [sys.executable, "-c", script],
        input=PAYLOAD.decode(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PYTHONPATH": ":".join(sys.path)},
    )


FULL_DISK = "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))"
KILLED_WHILE_WRITING = f"""
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
{FULL_DISK}
"""
NO_RIGHTS = """
if os.geteuid() == 0:
    os.seteuid(65534)
"""


class TestStore:
    def test_the_url_leads_to_the_payload(self, tmp_path: Path) -> None:
        directory = tmp_path / "a b%"
        url = FileQuarantine(directory).store("one", PAYLOAD)

        assert url == f"file://{tmp_path}/a%20b%25/one"
        assert Path(unquote(urlsplit(url).path)).read_bytes() == PAYLOAD
        assert names_in(directory) == ["one"]

    def test_missing_directories_are_made(self, tmp_path: Path) -> None:
        directory = tmp_path / "a" / "b" / "c"

        FileQuarantine(directory).store("one", b"")

        assert names_in(directory) == ["one"]

    def test_payloads_are_for_their_owner_only(self, tmp_path: Path) -> None:
        directory = tmp_path / "q"
        FileQuarantine(directory).store("one", PAYLOAD)

        assert stat.S_IMODE((directory / "one").stat().st_mode) == 0o600
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700

    def test_the_same_again_is_fine_and_writes_nothing(self, tmp_path: Path) -> None:
        first = FileQuarantine(tmp_path).store("one", PAYLOAD)
        before = (tmp_path / "one").stat()

        assert FileQuarantine(tmp_path).store("one", PAYLOAD) == first

        after = (tmp_path / "one").stat()
        assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)

    @pytest.mark.parametrize("other", [b"", PAYLOAD + b"x", PAYLOAD[:-1], b"x" * len(PAYLOAD)])
    def test_other_content_under_a_taken_name_is_refused(self, tmp_path: Path, other: bytes) -> None:
        quarantine = FileQuarantine(tmp_path)
        quarantine.store("one", PAYLOAD)

        with pytest.raises(QuarantineError, match="holds other content"):
            quarantine.store("one", other)

        assert (tmp_path / "one").read_bytes() == PAYLOAD
        assert names_in(tmp_path) == ["one"]

    @pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "/etc/x", "../x", "a\0b"])
    def test_a_name_stays_inside_the_directory(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(ValueError, match="not a name"):
            FileQuarantine(tmp_path).store(name, b"")


class TestFailures:
    def test_a_full_disk_leaves_nothing_behind_and_the_next_try_works(self, tmp_path: Path) -> None:
        outcome = run_store(FULL_DISK, tmp_path)

        assert outcome.stdout == f"refused: can't store {tmp_path}/one: File too large\n", outcome.stderr
        assert names_in(tmp_path) == []
        FileQuarantine(tmp_path).store("one", PAYLOAD)
        assert (tmp_path / "one").read_bytes() == PAYLOAD

    def test_what_a_crash_leaves_is_not_stored_and_gives_way(self, tmp_path: Path) -> None:
        outcome = run_store(KILLED_WHILE_WRITING, tmp_path)

        assert outcome.returncode == -signal.SIGXFSZ, outcome.stderr
        (leftover,) = tmp_path.iterdir()
        assert leftover.name.startswith(".")
        assert 0 < leftover.stat().st_size < len(PAYLOAD)

        FileQuarantine(tmp_path).store("two", b"2")
        assert leftover.name in names_in(tmp_path), "it belongs to another name"
        FileQuarantine(tmp_path).store("one", PAYLOAD)
        assert names_in(tmp_path) == ["one", "two"]
        assert (tmp_path / "one").read_bytes() == PAYLOAD

    def test_a_directory_without_write_permission(self, public_directory: Path) -> None:
        public_directory.chmod(0o555)

        outcome = run_store(NO_RIGHTS, public_directory)

        assert outcome.stdout == f"refused: can't store {public_directory}/one: Permission denied\n"
        assert names_in(public_directory) == []

    def test_a_file_where_the_directory_should_be(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")

        for directory in (tmp_path / "file", tmp_path / "file" / "below"):
            with pytest.raises(QuarantineError, match=f"can't store {directory}/one: ") as refusal:
                FileQuarantine(directory).store("one", PAYLOAD)
            assert "hunter2" not in str(refusal.value)

    def test_a_directory_where_the_file_should_be(self, tmp_path: Path) -> None:
        (tmp_path / "one").mkdir()

        with pytest.raises(QuarantineError, match=f"can't store {tmp_path}/one: Is a directory"):
            FileQuarantine(tmp_path).store("one", PAYLOAD)

    def test_the_error_is_ours_and_travels_between_processes(self) -> None:
        error = pickle.loads(pickle.dumps(QuarantineError("can't store x")))

        assert isinstance(error, PenstockError)
        assert str(error) == "can't store x"

    @pytest.fixture
    def public_directory(self) -> Iterator[Path]:
        """pytest's own directories are closed to the user that the test turns into."""
        with tempfile.TemporaryDirectory() as directory:
            yield Path(directory)
            Path(directory).chmod(0o755)


class TestUrl:
    def test_a_file_url_opens_its_directory(self, tmp_path: Path) -> None:
        directory = tmp_path / "a b"

        url = open_quarantine(f"file://{tmp_path}/a%20b", "eu-west-1").store("one", b"1")

        assert (directory / "one").read_bytes() == b"1"
        assert url == f"file://{tmp_path}/a%20b/one"

    @pytest.mark.parametrize(
        "url",
        [
            "",
            "/var/quarantine",
            "file:",
            "file:/var",
            "file://",
            "file:///",
            "file:////",
            "file://host/var",
            "file:///var?x=1",
            "file:///var#x",
            "file:///var/%00",
            "FILE:///var",
            "s3://Bucket/prefix",
            " file:///var",
        ],
    )
    def test_anything_else_is_refused_with_the_rule(self, url: str) -> None:
        with pytest.raises(ValueError, match=r"^must be file:///absolute/dir or s3://bucket/prefix$"):
            open_quarantine(url, "eu-west-1")


def test_names_sort_by_position_and_are_file_names() -> None:
    offsets = [
        LogOffset(1, 0),
        LogOffset(1, 2),
        LogOffset(1, 10),
        LogOffset(1, OP_INFINITY),
        LogOffset(2, 0),
        LogOffset(0x10, 0),
        LogOffset(0x16_B374_D848, 14),
        LogOffset(2**64 - 1, 0),
    ]
    names = [object_name("etl_slot", offset, b"payload") for offset in offsets]

    assert names == sorted(names)
    assert len(set(names)) == len(names)
    assert names[6] == "etl_slot-00000016b374d848-000000000000000e-239f59ed55e7.wal2json"
    assert object_name("etl_slot", offsets[6], b"payload") == names[6]
    assert object_name("etl_slot", offsets[6], b"other") != names[6]

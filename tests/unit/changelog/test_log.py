from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.changelog import log as change_log
from penstock.changelog import segment
from penstock.changelog.errors import ChangeLogBroken, ChangeLogTrimmed
from penstock.changelog.log import ChangeLog, LogLimits
from penstock.changelog.runs import create_run, remove_run
from penstock.changelog.scan import scan_run
from penstock.model.log_offset import BEFORE_ALL, LAST_BEFORE_REAL, OP_INFINITY, LogOffset
from penstock.model.relation import Relation
from tests.change_log_rows import (
    ITEMS,
    LIMITS,
    ORDERS,
    append_transaction,
    rows_of,
    transactions_in,
    txn,
)

ONE_BATCH_A_SEGMENT = replace(LIMITS, segment_bytes=1)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return create_run(tmp_path / "log", "run-1")


@pytest.fixture
def log(run: Path) -> Iterator[ChangeLog]:
    log = ChangeLog(run, LIMITS)
    yield log
    log.close()


@pytest.fixture
def small_segments(run: Path) -> Iterator[ChangeLog]:
    """A log in which each write makes a segment."""
    log = ChangeLog(run, ONE_BATCH_A_SEGMENT)
    yield log
    log.close()


class TestFlush:
    def test_appended_is_seen_and_flushed_is_persisted(self, log: ChangeLog) -> None:
        rows = append_transaction(log, 10, ORDERS, ITEMS)
        assert log.last_seen_offset == log.last_seen_txn_offset == txn(10)
        assert log.last_persisted_offset == LAST_BEFORE_REAL
        assert log.read_plan(None, BEFORE_ALL) == []

        assert log.flush(now=0) == txn(10)

        assert log.last_persisted_offset == log.last_persisted_txn_offset == txn(10)
        assert rows_of(log.read_plan(None, BEFORE_ALL)) == rows

    def test_written_is_not_persisted(self, log: ChangeLog) -> None:
        append_transaction(log, 10, ORDERS)

        assert log.write() is None

        assert log.last_persisted_offset == LAST_BEFORE_REAL
        assert log.read_plan(None, BEFORE_ALL) == []
        assert log.flush(now=0) == txn(10)

    def test_a_flush_in_mid_transaction_shows_readers_nothing_of_it(self, log: ChangeLog) -> None:
        first = append_transaction(log, 10, ORDERS)
        log.append(ORDERS, 20, 0, b"half")

        assert log.flush(now=0) == txn(10)

        assert log.last_persisted_offset == (20, 0)
        assert log.last_persisted_txn_offset == log.last_seen_txn_offset == txn(10)
        assert rows_of(log.read_plan(None, BEFORE_ALL)) == first
        assert rows_of(log.read_plan(None, BEFORE_ALL, up_to=LogOffset(20, 0))) == first

        log.append(ORDERS, 20, 2, b"the rest")
        assert log.flush(now=1) is None
        log.commit(20)
        assert log.flush(now=2) == txn(20)
        assert [payload for _, _, payload in rows_of(log.read_plan(None, txn(10)))] == [b"half", b"the rest"]

    def test_a_flush_with_nothing_new_syncs_nothing(
        self, log: ChangeLog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        append_transaction(log, 10, ORDERS)
        log.flush(now=0)
        monkeypatch.setattr(os, "fdatasync", lambda _: pytest.fail("a sync of nothing"))

        assert log.flush(now=1) is None

    def test_when_a_flush_is_due(self, log: ChangeLog) -> None:
        assert not log.is_flush_due(now=100)
        append_transaction(log, 10, ORDERS)
        assert log.is_flush_due(now=100), "after silence, at once"
        log.flush(now=100)
        assert not log.is_flush_due(now=200)
        log.append(ORDERS, 20, 0, b"")
        assert not log.is_flush_due(now=100.9)
        assert log.is_flush_due(now=101)

    def test_when_a_write_is_due(self, log: ChangeLog) -> None:
        log.append(ORDERS, 10, 0, b"x" * 65_000)
        assert not log.write_due
        log.append(ORDERS, 10, 2, b"x" * 1_000)
        assert log.write_due
        log.write()
        assert not log.write_due

    def test_appending_goes_on_while_the_disk_is_slow(
        self, log: ChangeLog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And what is appended during a sync is not covered by it."""
        syncing, go_on = threading.Event(), threading.Event()

        def slow_sync(_: int) -> None:
            syncing.set()
            assert go_on.wait(30)

        monkeypatch.setattr(os, "fdatasync", slow_sync)
        first = append_transaction(log, 10, ORDERS)
        flush = threading.Thread(target=log.flush, args=(0.0,))
        flush.start()
        assert syncing.wait(30)

        append_transaction(log, 20, ORDERS)
        assert log.last_seen_offset == txn(20)
        assert log.last_persisted_offset == LAST_BEFORE_REAL
        assert log.read_plan(None, BEFORE_ALL) == []

        go_on.set()
        flush.join(30)
        assert log.last_persisted_offset == log.last_persisted_txn_offset == txn(10)
        assert rows_of(log.read_plan(None, BEFORE_ALL)) == first

    def test_appender_disk_and_readers_at_the_same_time(self, run: Path) -> None:
        log = ChangeLog(run, replace(LIMITS, segment_bytes=20_000))
        done = threading.Event()
        boundaries = [LAST_BEFORE_REAL]

        def use_the_disk() -> None:
            while not done.is_set():
                log.flush(now=0)

        def read() -> None:
            while not done.is_set():
                after, up_to = boundaries[-1], log.last_persisted_txn_offset
                found = [offset for _, offset, _ in rows_of(log.read_plan(None, after, up_to))]
                transactions = range(after.tx_offset + 1, up_to.tx_offset + 1)
                assert found == [LogOffset(tx, op) for tx in transactions for op in (0, 2, 4)]
                if up_to > after:
                    boundaries.append(up_to)

        with ThreadPoolExecutor() as threads:
            others = [threads.submit(use_the_disk), threads.submit(read)]
            for tx_offset in count(1):
                append_transaction(log, tx_offset, ORDERS, ITEMS, ORDERS)
                if len(boundaries) > 10 or any(other.done() for other in others):
                    break
            done.set()
            for other in others:
                other.result()
        log.close()

    def test_a_refused_append_changes_nothing(self, log: ChangeLog) -> None:
        rows = append_transaction(log, 10, ORDERS)
        with pytest.raises(ValueError):
            log.append(ORDERS, 10, 2, b"late")
        with pytest.raises(ValueError):
            log.commit(10)
        log.flush(now=0)

        assert rows_of(log.read_plan(None, BEFORE_ALL)) == rows
        assert scan_run(Path(log.read_plan(None, BEFORE_ALL)[0].path).parent).last_txn_offset == txn(10)


class TestSegments:
    def test_a_segment_ends_in_the_middle_of_a_transaction(
        self, small_segments: ChangeLog, run: Path
    ) -> None:
        log = small_segments
        log.append(ORDERS, 10, 0, b"one")
        assert log.write() is None
        assert log.last_persisted_offset == (10, 0), "a segment's end is synced"
        assert log.last_persisted_txn_offset == LAST_BEFORE_REAL
        log.append(ORDERS, 10, 2, b"two")
        log.write()
        assert log.read_plan(None, BEFORE_ALL) == []
        log.commit(10)

        assert log.write() == txn(10)

        assert sorted(path.name for path in run.iterdir()) == [
            "0000000001.arrows",
            "0000000002.arrows",
            "0000000003.arrows",
        ]
        assert [payload for _, _, payload in rows_of(log.read_plan(None, BEFORE_ALL))] == [b"one", b"two"]

    def test_a_sealed_segment_is_an_arrow_stream_for_anybody(
        self, small_segments: ChangeLog, run: Path
    ) -> None:
        append_transaction(small_segments, 10, ORDERS, ITEMS)
        small_segments.flush(now=0)

        (path,) = run.iterdir()
        assert path.read_bytes().endswith(segment.END_OF_STREAM)
        with pa.ipc.open_stream(path) as stream:
            table = stream.read_all()
        assert table.schema == segment.SCHEMA
        assert table["relation_id"].to_pylist() == [-3, -2, -2, 0, 1, -1]
        assert table["tx_offset"].to_pylist() == [0, 10, 10, 10, 10, 10]
        assert table["op_offset"].to_pylist() == [OP_INFINITY, 0, 0, 0, 2, OP_INFINITY]
        assert table["payload"][1].as_py() == b'{"relation_id":0,"schema":"public","table":"orders"}'

    def test_segments_are_for_their_owner_only(self, log: ChangeLog, run: Path) -> None:
        append_transaction(log, 10, ORDERS)
        log.flush(now=0)

        (path,) = run.iterdir()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(run.stat().st_mode) == 0o700

    def test_a_segment_file_is_never_opened_again(self, run: Path) -> None:
        (run / "0000000001.arrows").write_bytes(b"somebody else's")
        log = ChangeLog(run, LIMITS)
        append_transaction(log, 10, ORDERS)

        with pytest.raises(ChangeLogBroken, match=r"can't write .*/0000000001.arrows: File exists"):
            log.flush(now=0)

        assert (run / "0000000001.arrows").read_bytes() == b"somebody else's"

    def test_large_and_empty_payloads_and_views(self, log: ChangeLog) -> None:
        payloads = [b"", b"x" * 3_000_000, b"\xff\x00"]
        for place, payload in enumerate(payloads):
            log.append(ORDERS, 10, 2 * place, memoryview(b"w" + payload)[1:])
        log.commit(10)
        log.flush(now=0)

        assert [payload for _, _, payload in rows_of(log.read_plan(None, BEFORE_ALL))] == payloads


class TestBroken:
    @pytest.mark.parametrize("call", ["write", "fdatasync", "fsync", "open", "statvfs"])
    def test_after_an_error_nothing_is_taken_and_nothing_more_is_claimed(
        self, log: ChangeLog, run: Path, monkeypatch: pytest.MonkeyPatch, call: str
    ) -> None:
        rows = append_transaction(log, 10, ORDERS)
        if call not in ("fsync", "open"):
            log.flush(now=0)
        claimed = log.last_persisted_txn_offset
        append_transaction(log, 20, ORDERS)

        def fail(*_: object) -> int:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail)
            with pytest.raises(ChangeLogBroken, match=rf"can't write {run}/.*: Input/output error"):
                log.flush(now=1)

        # The disk works again, and that proves nothing.
        for refused in (
            lambda: log.append(ORDERS, 30, 0, b""),
            lambda: log.commit(30),
            lambda: log.flush(now=2),
            log.write,
            lambda: log.trim(txn(10)),
        ):
            with pytest.raises(ChangeLogBroken, match="Input/output error"):
                refused()
        assert log.last_persisted_offset == log.last_persisted_txn_offset == claimed
        assert rows_of(log.read_plan(None, BEFORE_ALL)) == [row for row in rows if row[1] <= claimed]

    def test_a_short_write_is_carried_on(self, log: ChangeLog, monkeypatch: pytest.MonkeyPatch) -> None:
        write = os.write
        monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:7]))
        rows = append_transaction(log, 10, ORDERS, ITEMS)
        log.flush(now=0)

        assert rows_of(log.read_plan(None, BEFORE_ALL)) == rows

    def test_an_interrupt_in_a_write_breaks_it_too(
        self, log: ChangeLog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        append_transaction(log, 10, ORDERS)

        def interrupt(*_: object) -> int:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", interrupt)
            with pytest.raises(KeyboardInterrupt):
                log.flush(now=0)

        with pytest.raises(ChangeLogBroken, match="KeyboardInterrupt"):
            log.flush(now=1)

    def test_a_change_that_can_not_be_buffered_is_not_called_persisted(self, log: ChangeLog) -> None:
        with pytest.raises(TypeError):
            log.append(ORDERS, 10, 0, None)  # type: ignore[arg-type]

        with pytest.raises(ChangeLogBroken, match="0/A:0 could not be buffered"):
            log.flush(now=0)
        assert log.last_persisted_offset == LAST_BEFORE_REAL

    def test_a_removed_directory(self, log: ChangeLog, run: Path) -> None:
        append_transaction(log, 10, ORDERS)
        log.flush(now=0)
        remove_run(run)
        append_transaction(log, 20, ORDERS)

        with pytest.raises(ChangeLogBroken, match=f"can't write {run}: No such file or directory"):
            log.flush(now=1)

    def test_a_closed_log_takes_nothing_and_stays_readable(self, log: ChangeLog, run: Path) -> None:
        rows = append_transaction(log, 10, ORDERS)
        log.flush(now=0)
        log.close()
        log.close()

        with pytest.raises(ChangeLogBroken, match=f"the log in {run} is closed"):
            log.append(ORDERS, 20, 0, b"")
        assert rows_of(log.read_plan(None, BEFORE_ALL)) == rows


class TestTrim:
    def test_sealed_segments_at_or_below_the_offset_go(self, small_segments: ChangeLog, run: Path) -> None:
        log = small_segments
        for tx_offset in (10, 20, 30):
            append_transaction(log, tx_offset, ORDERS)
            log.write()
        size = log.size_bytes

        assert log.trim(LogOffset(20, 0)) == 1
        assert log.trim(LogOffset(20, 0)) == 0
        assert log.trim(txn(20)) == 1

        assert [path.name for path in run.iterdir()] == ["0000000003.arrows"]
        assert log.size_bytes == pytest.approx(size / 3, abs=1)
        assert transactions_in(log.read_plan([ORDERS], txn(20))) == [30]

    def test_the_open_segment_stays(self, log: ChangeLog, run: Path) -> None:
        append_transaction(log, 10, ORDERS)
        log.flush(now=0)

        assert log.trim(txn(99)) == 0
        assert len(list(run.iterdir())) == 1

    def test_nothing_of_an_open_transaction_goes(self, small_segments: ChangeLog) -> None:
        log = small_segments
        log.append(ORDERS, 10, 0, b"")
        log.write()
        assert log.last_persisted_offset == (10, 0)

        assert log.trim(txn(10)) == 0
        log.commit(10)
        log.write()
        assert log.trim(txn(10)) == 2

    def test_a_reader_that_would_miss_something_is_told(self, small_segments: ChangeLog) -> None:
        log = small_segments
        append_transaction(log, 10, ORDERS)
        append_transaction(log, 20, ITEMS)
        log.write()
        append_transaction(log, 30, ORDERS)
        log.write()
        log.trim(txn(20))

        with pytest.raises(ChangeLogTrimmed, match=r"public.orders up to 0/A:0 .* only up to before-all"):
            log.read_plan([ORDERS], BEFORE_ALL)
        with pytest.raises(ChangeLogTrimmed):
            log.read_plan(None, txn(10))
        assert transactions_in(log.read_plan([ORDERS], txn(10))) == [30], "it has all that is gone"
        assert log.read_plan([Relation("public", "untouched")], BEFORE_ALL) == []

    def test_a_segment_that_is_gone_already(self, small_segments: ChangeLog, run: Path) -> None:
        append_transaction(small_segments, 10, ORDERS)
        small_segments.write()
        for path in run.iterdir():
            path.unlink()

        assert small_segments.trim(txn(10)) == 1


class TestLimits:
    def test_over_the_limit_until_trimmed(self, run: Path) -> None:
        log = ChangeLog(run, replace(ONE_BATCH_A_SEGMENT, max_bytes=10_000))
        assert not log.is_half_full
        log.append(ORDERS, 10, 0, b"x" * 6_000)
        assert log.is_half_full
        assert not log.is_over_limit
        log.write()
        log.append(ORDERS, 10, 2, b"x" * 6_000)
        assert log.is_over_limit, "what is in memory counts"
        log.append(ORDERS, 10, 4, b"the open transaction may go on")
        log.commit(10)
        log.flush(now=0)
        assert log.is_over_limit
        log.trim(txn(10))
        assert not log.is_over_limit
        assert log.size_bytes == 0

    def test_reading_pauses_before_the_disk_is_full(self, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        free = 1_000_000
        monkeypatch.setattr(change_log, "free_bytes", lambda _: free)
        log = ChangeLog(run, replace(LIMITS, min_free_bytes=500_000))
        append_transaction(log, 10, ORDERS)
        log.flush(now=0)
        assert not log.is_over_limit

        free = 999_999
        append_transaction(log, 20, ORDERS)
        log.flush(now=1)
        assert log.is_over_limit
        assert not log.is_flush_due(now=1.5)
        assert log.is_flush_due(now=2), "so that somebody sees when there is room again"

        free = 1_000_000
        log.flush(now=2)
        assert not log.is_over_limit

    def test_a_write_that_would_leave_too_little_room_breaks_the_log(
        self, run: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        free = 600_000
        monkeypatch.setattr(change_log, "free_bytes", lambda _: free)
        log = ChangeLog(run, replace(LIMITS, min_free_bytes=500_000))
        rows = append_transaction(log, 10, ORDERS)
        log.flush(now=0)

        log.append(ORDERS, 20, 0, b"x" * 100_000)
        with pytest.raises(
            ChangeLogBroken,
            match=rf"won't write {run}: 585.9 kB free there, and 488.3 kB must stay free; make room there",
        ):
            log.write()

        with pytest.raises(ChangeLogBroken, match="make room there"):
            log.append(ORDERS, 20, 2, b"")
        assert log.last_persisted_offset == txn(10)
        assert rows_of(log.read_plan(None, BEFORE_ALL)) == rows


def test_a_log_that_is_full_is_emptied_by_trimming(tmp_path: Path) -> None:
    """With segments as large as the bound, the one that is written would keep the log full for ever."""
    log = ChangeLog(create_run(tmp_path, "small"), LogLimits.of(2**20, 0))
    for op_offset in count(step=2):
        if log.is_over_limit:
            break
        log.append(ORDERS, 100, op_offset, bytes(1000))
        if log.write_due:
            log.write()
    log.commit(100)
    log.flush(0.0)
    assert log.is_over_limit
    log.trim(log.last_persisted_txn_offset)
    assert not log.is_over_limit
    log.close()

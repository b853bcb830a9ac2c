from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.changelog.errors import ChangeLogBroken, ChangeLogTrimmed, SegmentUnreadable
from penstock.changelog.index import BatchSummary, Portion, SegmentIndex, SegmentRange, Span
from penstock.changelog.log import ChangeLog
from penstock.changelog.runs import create_run
from penstock.changelog.scan import scan_run
from penstock.changelog.segment import batches_in
from penstock.errors import PenstockError
from penstock.model.log_offset import BEFORE_ALL, LAST_BEFORE_REAL, LogOffset
from penstock.model.relation import Relation
from tests.change_log_rows import (
    ITEMS,
    LIMITS,
    ORDERS,
    Row,
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


class TestPlans:
    def test_many_relations_round_trip(self, run: Path) -> None:
        log = ChangeLog(run, replace(LIMITS, segment_bytes=10_000, buffer_bytes=2_000))
        relations = [Relation("public", f"table_{number}") for number in range(40)]
        written: list[Row] = []
        for number in range(200):
            chosen = [relations[(number * step) % 40] for step in (1, 3, 7)]
            written += append_transaction(log, 10 + number, *chosen)
            if log.write_due:
                log.write()
        log.flush(now=0)

        assert len(list(run.iterdir())) > 3
        assert rows_of(log.read_plan(None, BEFORE_ALL)) == written
        for asked in ([relations[0]], relations[3:5], [Relation("public", "unknown")], []):
            expected = [row for row in written if row[0] in asked]
            assert rows_of(log.read_plan(asked, BEFORE_ALL)) == expected
        within = [row for row in written if txn(50) < row[1] <= txn(60)]
        assert rows_of(log.read_plan(None, txn(50), txn(60))) == within

    def test_segments_without_the_relation_or_the_offsets_are_left_out(
        self, small_segments: ChangeLog
    ) -> None:
        for number in range(1, 7):
            append_transaction(small_segments, 10 * number, ITEMS if number == 4 else ORDERS)
            small_segments.write()

        def segments(plan: list[SegmentRange]) -> list[int]:
            return [int(Path(part.path).stem) for part in plan]

        assert segments(small_segments.read_plan([ITEMS], BEFORE_ALL)) == [4]
        assert segments(small_segments.read_plan([ORDERS], BEFORE_ALL)) == [1, 2, 3, 5, 6]
        assert segments(small_segments.read_plan([ORDERS], txn(20), txn(50))) == [3, 5]
        assert segments(small_segments.read_plan([ITEMS], txn(40))) == []
        assert segments(small_segments.read_plan(None, txn(60))) == []
        assert segments(small_segments.read_plan(None, txn(50), txn(20))) == []

    def test_up_to_takes_its_transaction_as_a_whole(self, log: ChangeLog) -> None:
        for tx_offset in (10, 20, 30):
            append_transaction(log, tx_offset, ORDERS, ORDERS, ORDERS)
        log.flush(now=0)

        for up_to in (LogOffset(20, 0), LogOffset(20, 2), txn(20), txn(29)):
            plan = log.read_plan([ORDERS], BEFORE_ALL, up_to)
            assert [offset.tx_offset for _, offset, _ in rows_of(plan)] == [10] * 3 + [20] * 3
        assert transactions_in(log.read_plan([ORDERS], BEFORE_ALL, txn(99))) == [10, 20, 30]

    def test_only_the_bytes_near_the_range_are_read(self, log: ChangeLog) -> None:
        for tx_offset in range(1, 101):
            log.append(ORDERS, tx_offset, 0, b"x" * 10_000)
            log.commit(tx_offset)
            log.flush(now=0)

        (part,) = log.read_plan([ORDERS], txn(50), txn(51))

        assert part.size_bytes < 3 * 64 * 1024
        assert transactions_in([part]) == [51]
        (last,) = log.read_plan([ORDERS], txn(99))
        assert last.size_bytes < 3 * 64 * 1024
        assert transactions_in([last]) == [100]

    def test_what_others_write_is_not_read(self, log: ChangeLog) -> None:
        """Between two changes of ours are megabytes of others': a reader reads only what is near its own."""
        for tx_offset in range(1, 101):
            log.append(ITEMS if tx_offset in (20, 80) else ORDERS, tx_offset, 0, b"x" * 60_000)
            log.commit(tx_offset)
            log.flush(now=0)

        plan = log.read_plan([ITEMS], BEFORE_ALL)

        assert transactions_in(plan) == [20, 80]
        assert sum(part.size_bytes for part in plan) < 6 * 64 * 1024
        assert 120_000 < sum(part.wanted_bytes for part in plan) < 121_000
        both = log.read_plan([ITEMS, ORDERS], txn(10), txn(90))
        assert transactions_in(both) == list(range(11, 91))

    def test_a_limit_counts_the_changes_of_the_reader_s_own_relations(
        self, small_segments: ChangeLog
    ) -> None:
        for tx_offset in range(1, 21):
            small_segments.append(ITEMS if tx_offset % 10 == 0 else ORDERS, tx_offset, 0, b"x" * 1_000)
            small_segments.commit(tx_offset)
            small_segments.flush(now=0)

        def ends(relation: Relation, after: LogOffset, max_bytes: int) -> int:
            return small_segments.boundary_within([relation], after, max_bytes).tx_offset

        assert ends(ORDERS, BEFORE_ALL, 2_000) == 2
        assert ends(ORDERS, txn(9), 2_000) == 12
        assert ends(ITEMS, BEFORE_ALL, 1_000) == 10
        assert ends(ITEMS, BEFORE_ALL, 2_000) == 20
        assert ends(ITEMS, BEFORE_ALL, 9_000) == 20

    def test_a_plan_never_reaches_into_bytes_that_are_not_synced(self) -> None:
        """The next landmark may be behind them."""
        index = SegmentIndex()
        index.relation_ids[ORDERS] = 0
        index.start_segment("one", 100)
        for end, tx_offset in ((1_000, 10), (100_000, 20), (200_000, 30)):
            span = Span(LogOffset(tx_offset, 0), txn(tx_offset))
            index.add_batch(end, BatchSummary(span, {0: Portion(Span(span.first, span.first), 1)}))
            if tx_offset == 10:
                index.persisted()

        (part,) = index.plan([ORDERS], BEFORE_ALL, None, boundary=txn(10))

        assert (part.start, part.end) == (100, 1_000)

    def test_a_segment_that_was_just_started_hides_nothing(self) -> None:
        index = SegmentIndex()
        index.relation_ids[ORDERS] = 0
        index.start_segment("one", 100)
        span = Span(LogOffset(10, 0), txn(10))
        index.add_batch(1_000, BatchSummary(span, {0: Portion(span, 1)}))
        index.seal()
        index.start_segment("two", 100)

        (part,) = index.plan([ORDERS], LAST_BEFORE_REAL, None, boundary=txn(10))
        assert part.path == "one"
        assert index.trim(txn(10)) == ["one"]

    def test_a_plan_stays_good_while_the_file_grows(self, log: ChangeLog) -> None:
        rows = append_transaction(log, 10, ORDERS)
        log.flush(now=0)
        plan = pickle.loads(pickle.dumps(log.read_plan([ORDERS], BEFORE_ALL)))
        append_transaction(log, 20, ORDERS)
        log.write()

        assert plan == log.read_plan([ORDERS], BEFORE_ALL, txn(10))
        assert rows_of(plan) == rows

    def test_another_process_reads_while_the_writer_goes_on(self, log: ChangeLog) -> None:
        program = """
import pickle, sys
from penstock.changelog.segment import read_segment
while True:
    plan = pickle.load(sys.stdin.buffer)
    rows = [row["tx_offset"] for part in plan for batch in read_segment(part) for row in batch.to_pylist()]
    print(*rows, flush=True)
"""
        with subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"PYTHONPATH": ":".join(sys.path)},
        ) as reader:
            assert reader.stdin is not None
            assert reader.stdout is not None
            log.append(ORDERS, 1, 0, b"the beginning")
            for tx_offset in range(1, 60):
                log.append(ORDERS, tx_offset, 2, b"the end of this one")
                log.commit(tx_offset)
                log.flush(now=0)
                plan = log.read_plan([ORDERS], txn(tx_offset - 10))
                log.append(ORDERS, tx_offset + 1, 0, b"the beginning of the next one")
                log.write()
                pickle.dump(plan, reader.stdin)
                reader.stdin.flush()
                seen = [int(word) for word in reader.stdout.readline().split()]
                assert seen == [tx for tx in range(max(1, tx_offset - 9), tx_offset + 1) for _ in range(2)]
            reader.kill()


class TestDamage:
    @pytest.fixture
    def part(self, log: ChangeLog) -> SegmentRange:
        append_transaction(log, 10, ORDERS, ITEMS)
        log.flush(now=0)
        append_transaction(log, 20, ORDERS)
        log.flush(now=1)
        (part,) = log.read_plan(None, BEFORE_ALL)
        return part

    def test_a_missing_segment(self, part: SegmentRange) -> None:
        Path(part.path).unlink()

        with pytest.raises(SegmentUnreadable, match=f"can't read {part.path}: No such file"):
            rows_of([part])

    @pytest.mark.parametrize("missing", [1, 8, 100, 300])
    def test_a_segment_that_is_too_short(self, part: SegmentRange, missing: int) -> None:
        os.truncate(part.path, part.end - missing)

        with pytest.raises(SegmentUnreadable, match=f"ends at byte {part.end - missing}, before {part.end}"):
            rows_of([part])

    def test_a_range_that_ends_inside_a_batch(self, part: SegmentRange) -> None:
        for end in (part.end - 1, part.end - 100, part.start + 5):
            with pytest.raises(SegmentUnreadable, match=r"is damaged behind byte \d+"):
                rows_of([replace(part, end=end)])

    def test_zeros_where_a_batch_should_be(self, part: SegmentRange) -> None:
        """Arrow takes zeros for the stream's end: less would be read, in silence."""
        content = Path(part.path).read_bytes()
        ends = [placed.end for placed in batches_in(pa.py_buffer(content[part.start : part.end]))]
        for end in (0, *ends[:-1]):
            kept = content[: part.start + end]
            Path(part.path).write_bytes(kept + bytes(len(content) - len(kept)))
            with pytest.raises(SegmentUnreadable, match=f"ends at byte {len(kept)}, before {part.end}"):
                rows_of([part])

    def test_no_damage_ends_the_process(self, part: SegmentRange) -> None:
        content = Path(part.path).read_bytes()
        noticed = 0
        for start in range(part.start, part.end, 4):
            Path(part.path).write_bytes(content[:start] + b"\xff\x7f\x00\x01" + content[start + 4 :])
            try:
                rows_of([part])
            except SegmentUnreadable:
                noticed += 1
        assert noticed > 10

    def test_errors_travel_between_processes(self) -> None:
        for kind in (ChangeLogBroken, ChangeLogTrimmed, SegmentUnreadable):
            error = pickle.loads(pickle.dumps(kind("why")))
            assert isinstance(error, PenstockError)
            assert str(error) == "why"


class TestScan:
    def test_a_run_is_read_without_its_writer(self, run: Path) -> None:
        log = ChangeLog(run, replace(LIMITS, segment_bytes=3_000, buffer_bytes=500))
        rows: list[Row] = []
        for tx_offset in range(10, 60):
            rows += append_transaction(log, tx_offset, ORDERS, ITEMS)
            if log.write_due:
                log.write()
        log.append(ORDERS, 60, 0, b"half a transaction")
        log.flush(now=0)

        scanned = scan_run(run)

        assert scanned.last_txn_offset == log.last_persisted_txn_offset == txn(59)
        assert rows_of(scanned.read_plan(None, BEFORE_ALL)) == rows
        for asked in ([ORDERS], [ITEMS], [ORDERS, ITEMS]):
            assert scanned.read_plan(asked, txn(20), txn(30)) == log.read_plan(asked, txn(20), txn(30))

    def test_a_trimmed_run(self, small_segments: ChangeLog, run: Path) -> None:
        for tx_offset in (10, 20, 30):
            append_transaction(small_segments, tx_offset, ORDERS)
            small_segments.write()
        small_segments.trim(txn(10))

        assert scan_run(run).begins_after == txn(10)
        assert transactions_in(scan_run(run).read_plan([ORDERS], BEFORE_ALL)) == [20, 30]

    def test_a_transaction_of_which_a_part_was_trimmed_is_not_shown(
        self, small_segments: ChangeLog, run: Path
    ) -> None:
        log = small_segments
        log.append(ORDERS, 10, 0, b"goes with its segment")
        log.write()
        log.append(ORDERS, 10, 2, b"stays, beside the next transaction")
        log.commit(10)
        append_transaction(log, 20, ORDERS)
        log.write()
        log.trim(txn(10))

        assert len(list(run.iterdir())) == 1
        assert scan_run(run).begins_after == txn(10)
        assert transactions_in(scan_run(run).read_plan(None, BEFORE_ALL)) == [20]

    def test_an_empty_run(self, run: Path) -> None:
        assert scan_run(run).last_txn_offset == LAST_BEFORE_REAL
        assert scan_run(run).read_plan(None, BEFORE_ALL) == []

    def test_every_torn_tail_leaves_the_whole_transactions(self, log: ChangeLog, run: Path) -> None:
        for tx_offset in (10, 20, 30):
            append_transaction(log, tx_offset, ORDERS, ITEMS)
            log.flush(now=0)
        (path,) = run.iterdir()
        content = path.read_bytes()
        found = set()
        for length in range(0, len(content), 7):
            path.write_bytes(content[:length])
            scanned = scan_run(run)
            seen = transactions_in(scanned.read_plan([ORDERS, ITEMS], BEFORE_ALL))
            assert seen == [tx for tx in (10, 20, 30) if txn(tx) <= scanned.last_txn_offset]
            assert len(rows_of(scanned.read_plan(None, BEFORE_ALL))) == 2 * len(seen)
            found.add(len(seen))
        assert found == {0, 1, 2}

    def test_a_hole_in_the_middle_is_not_taken_for_the_end(
        self, small_segments: ChangeLog, run: Path
    ) -> None:
        for tx_offset in (10, 20, 30):
            append_transaction(small_segments, tx_offset, ORDERS)
            small_segments.write()
        middle = run / "0000000002.arrows"
        content = middle.read_bytes()

        for damage in (content[:-8], content[:-20], content[:100], b""):
            middle.write_bytes(damage)
            with pytest.raises(SegmentUnreadable, match=f"{middle} is damaged behind byte"):
                scan_run(run)
        middle.unlink()
        last = run / "0000000003.arrows"
        with pytest.raises(SegmentUnreadable, match=f"{last} follows 0/14:inf, .* before it ends at 0/A:inf"):
            scan_run(run)

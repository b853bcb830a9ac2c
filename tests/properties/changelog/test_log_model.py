"""ChangeLog against a list of rows, and against what plain Arrow finds in its files."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.changelog import index as change_log_index
from penstock.changelog.errors import ChangeLogTrimmed
from penstock.changelog.log import ChangeLog
from penstock.changelog.offsets import Mark
from penstock.changelog.runs import create_run
from penstock.changelog.scan import scan_run
from penstock.changelog.segment import END_OF_STREAM
from penstock.model.log_offset import LAST_BEFORE_REAL, LogOffset
from penstock.model.relation import Relation
from tests.change_log_rows import LIMITS, Row, rows_of, txn

RELATIONS = [Relation("public", f"table_{number}") for number in range(4)]

relations = st.sampled_from(RELATIONS)
sizes = st.sampled_from([0, 1, 50, 400])
places = st.floats(0, 1, allow_nan=False)
"""Where in the offsets seen so far, from before the first (0) to behind the last (1)."""


class FileContent:
    """A segment as any Arrow reader sees it."""

    def __init__(self, path: Path) -> None:
        with pa.ipc.open_stream(path) as stream:
            rows = stream.read_all().to_pylist()
        self.is_sealed = path.read_bytes().endswith(END_OF_STREAM)
        self.changes = {
            LogOffset(row["tx_offset"], row["op_offset"]) for row in rows if row["relation_id"] >= 0
        }
        self.last = LogOffset(rows[-1]["tx_offset"], rows[-1]["op_offset"])


class ChangeLogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="change-log-"))
        self.run = create_run(self.directory, "run")
        self.rows: list[Row] = []
        """Every change ever appended."""
        self.gone: set[LogOffset] = set()
        """The changes that trims have deleted."""
        self.seen = self.persisted = Mark(LAST_BEFORE_REAL, LAST_BEFORE_REAL)
        self.in_transaction = False

    @initialize(segment_bytes=st.sampled_from([1, 2_500, 6_000]), landmark_bytes=st.sampled_from([1, 1_500]))
    def begin(self, segment_bytes: int, landmark_bytes: int) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(change_log_index, "LANDMARK_BYTES", landmark_bytes)
        self.log = ChangeLog(self.run, replace(LIMITS, segment_bytes=segment_bytes))

    def teardown(self) -> None:
        self.log.close()
        self.patch.undo()
        shutil.rmtree(self.directory)

    @rule(changes=st.lists(st.tuples(relations, sizes), min_size=1, max_size=6), gap=st.integers(1, 3))
    def append_fragment(self, changes: list[tuple[Relation, int]], gap: int) -> None:
        last = self.seen.offset
        following = LogOffset(last.tx_offset, last.op_offset + 2)
        offset = following if self.in_transaction else LogOffset(last.tx_offset + gap, 0)
        for relation, size in changes:
            payload = f"{offset}".encode() + b"." * size
            self.log.append(relation, *offset, payload)
            self.rows.append((relation, offset, payload))
            self.seen = Mark(offset, self.seen.txn_offset)
            offset = LogOffset(offset.tx_offset, offset.op_offset + 2)
        self.in_transaction = True

    @rule(gap=st.integers(1, 3))
    def commit(self, gap: int) -> None:
        """Of the open transaction, or of one without changes."""
        tx_offset = self.seen.offset.tx_offset + (0 if self.in_transaction else gap)
        self.log.commit(tx_offset)
        self.seen = Mark(txn(tx_offset), txn(tx_offset))
        self.in_transaction = False

    @rule()
    def write(self) -> None:
        """It persists everything if a segment ends with it, and otherwise nothing."""
        before = self.persisted
        moved = self.log.write()
        if self.log.last_persisted_offset != before.offset:
            event("a segment's end in a transaction" if self.in_transaction else "a segment's end")
            self.persisted = self.seen
        self.expect_moved(moved, before)

    @rule()
    def flush(self) -> None:
        before = self.persisted
        moved = self.log.flush(now=0)
        self.persisted = self.seen
        self.expect_moved(moved, before)

    def expect_moved(self, moved: LogOffset | None, before: Mark) -> None:
        boundary = self.persisted.txn_offset
        assert moved == (boundary if boundary != before.txn_offset else None)

    @rule(place=st.just(1.0) | places)
    def trim(self, place: float) -> None:
        offset = self.offset_at(place)
        before = self.files()

        count = self.log.trim(offset)

        after = self.files()
        may_go = min(offset, self.persisted.txn_offset)
        removed = before.keys() - after.keys()
        assert removed == {
            name for name, content in before.items() if content.is_sealed and content.last <= may_go
        }
        assert len(removed) == count
        for name in removed:
            self.gone |= before[name].changes

    @rule(asked=st.none() | st.sets(relations), low=st.just(0.0) | places, high=st.none() | places)
    def read(self, asked: set[Relation] | None, low: float, high: float | None) -> None:
        after = self.offset_at(low)
        up_to = None if high is None else self.offset_at(high)
        wanted = [row for row in self.rows if (asked is None or row[0] in asked) and row[1] > after]
        if any(offset in self.gone for _, offset, _ in wanted):
            event("a reader that came too late")
            with pytest.raises(ChangeLogTrimmed):
                self.log.read_plan(asked, after, up_to)
            return
        last = min(self.persisted.txn_offset, txn(up_to.tx_offset) if up_to else self.persisted.txn_offset)
        assert rows_of(self.log.read_plan(asked, after, up_to)) == [row for row in wanted if row[1] <= last]

    @rule()
    def crash_and_scan(self) -> None:
        """What another process finds: whole transactions, and at least what was called persisted."""
        scanned = scan_run(self.run)
        on_disk = {offset for content in self.files().values() for offset in content.changes}
        found = rows_of(scanned.read_plan(None, LAST_BEFORE_REAL))

        begun_before = {offset.tx_offset for offset in self.gone}
        kept = [row for row in self.rows if row[1].tx_offset not in begun_before]
        promised = [row for row in kept if row[1] <= self.persisted.txn_offset]
        assert found == [row for row in kept if row[1] <= scanned.last_txn_offset]
        assert found[: len(promised)] == promised
        assert {offset for _, offset, _ in found} <= on_disk

    @precondition(lambda self: self.rows)
    @rule(distance=st.integers(0, 2))
    def refuse_what_was_seen(self, distance: int) -> None:
        tx_offset = self.seen.offset.tx_offset - distance
        with pytest.raises(ValueError):
            self.log.append(RELATIONS[0], tx_offset, 0, b"again")
        if distance or not self.in_transaction:
            with pytest.raises(ValueError):
                self.log.commit(tx_offset)

    @invariant()
    def offsets_agree(self) -> None:
        log = self.log
        assert Mark(log.last_seen_offset, log.last_seen_txn_offset) == self.seen
        assert Mark(log.last_persisted_offset, log.last_persisted_txn_offset) == self.persisted

    @invariant()
    def readers_see_whole_transactions(self) -> None:
        """Said without the model's idea of ranges: every transaction that shows is complete."""
        survivors = [row for row in self.rows if row[1] not in self.gone]
        after = max(self.gone, default=LAST_BEFORE_REAL)
        found = {offset for _, offset, _ in rows_of(self.log.read_plan(None, after))}
        open_one = self.seen.offset.tx_offset if self.in_transaction else None
        for tx_offset in {offset.tx_offset for offset in found}:
            assert tx_offset != open_one
            whole = {row[1] for row in survivors if row[1].tx_offset == tx_offset and row[1] > after}
            assert whole <= found

    def offset_at(self, place: float) -> LogOffset:
        known = [LAST_BEFORE_REAL, *(offset for _, offset, _ in self.rows), self.seen.txn_offset]
        offsets = sorted({*known, *(txn(offset.tx_offset) for offset in known)})
        return offsets[min(int(place * len(offsets)), len(offsets) - 1)]

    def files(self) -> dict[str, FileContent]:
        return {path.name: FileContent(path) for path in self.run.iterdir()}


TestChangeLogMachine = ChangeLogMachine.TestCase
TestChangeLogMachine.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None, derandomize=True, database=None
)

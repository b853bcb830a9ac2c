from __future__ import annotations

import pytest

from penstock.changelog.offsets import Mark, WriteOffsets
from penstock.model.log_offset import LAST_BEFORE_REAL, OP_INFINITY
from tests.change_log_rows import (
    txn,
)


class TestOffsets:
    def test_before_the_first_change(self) -> None:
        offsets = WriteOffsets()

        assert offsets.mark() == Mark(LAST_BEFORE_REAL, LAST_BEFORE_REAL)
        assert offsets.last_persisted_offset == LAST_BEFORE_REAL
        assert offsets.last_persisted_txn_offset == LAST_BEFORE_REAL
        assert offsets.all_persisted

    def test_a_sync_in_mid_transaction_moves_the_offset_and_not_the_boundary(self) -> None:
        offsets = WriteOffsets()
        offsets.saw(10, 0)
        offsets.committed(10)
        offsets.saw(20, 0)
        offsets.saw(20, 2)

        offsets.persisted(offsets.mark())

        assert offsets.last_seen_offset == offsets.last_persisted_offset == (20, 2)
        assert offsets.last_seen_txn_offset == offsets.last_persisted_txn_offset == txn(10)

        offsets.committed(20)
        assert offsets.last_seen_offset == offsets.last_seen_txn_offset == txn(20)
        assert offsets.last_persisted_txn_offset == txn(10)
        assert not offsets.all_persisted

        offsets.persisted(offsets.mark())
        assert offsets.last_persisted_offset == offsets.last_persisted_txn_offset == txn(20)
        assert offsets.all_persisted

    def test_what_is_seen_after_a_mark_is_not_covered_by_it(self) -> None:
        offsets = WriteOffsets()
        offsets.saw(10, 0)
        mark = offsets.mark()
        offsets.committed(10)

        offsets.persisted(mark)

        assert offsets.last_persisted_offset == (10, 0)
        assert offsets.last_persisted_txn_offset == LAST_BEFORE_REAL

    @pytest.mark.parametrize(
        ("tx_offset", "op_offset"), [(20, 2), (20, 1), (21, 0), (19, 4), (20, OP_INFINITY), (20, -1)]
    )
    def test_a_change_that_does_not_fit_the_open_transaction(self, tx_offset: int, op_offset: int) -> None:
        offsets = WriteOffsets()
        offsets.saw(20, 2)
        before = offsets.mark()

        with pytest.raises(ValueError, match="does not fit in the open transaction at 0/14:2"):
            offsets.saw(tx_offset, op_offset)

        assert offsets.mark() == before

    @pytest.mark.parametrize(
        ("tx_offset", "op_offset"), [(20, 4), (19, 0), (0, 0), (21, -1), (21, OP_INFINITY)]
    )
    def test_a_change_that_does_not_begin_a_transaction(self, tx_offset: int, op_offset: int) -> None:
        offsets = WriteOffsets()
        offsets.committed(20)

        with pytest.raises(ValueError, match="does not fit after the commit at 0/14:inf"):
            offsets.saw(tx_offset, op_offset)

    def test_the_snapshot_region_is_not_for_the_log(self) -> None:
        with pytest.raises(ValueError):
            WriteOffsets().saw(0, 0)
        with pytest.raises(ValueError):
            WriteOffsets().committed(0)

    def test_a_commit_must_be_of_the_open_transaction(self) -> None:
        offsets = WriteOffsets()
        offsets.saw(20, 0)
        for other in (19, 21):
            with pytest.raises(ValueError):
                offsets.committed(other)
        offsets.committed(20)
        for repeated in (20, 19):
            with pytest.raises(ValueError):
                offsets.committed(repeated)
        assert offsets.committed(21) == txn(21), "one without changes"

    def test_nothing_is_persisted_that_was_not_seen_or_twice(self) -> None:
        offsets = WriteOffsets()
        offsets.committed(10)
        old = offsets.mark()
        offsets.committed(20)
        offsets.persisted(offsets.mark())

        for wrong in (old, Mark(txn(30), txn(20)), Mark(txn(20), txn(30)), Mark(txn(20), txn(10))):
            with pytest.raises(RuntimeError):
                offsets.persisted(wrong)

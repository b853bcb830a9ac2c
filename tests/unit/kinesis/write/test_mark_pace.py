from __future__ import annotations

from penstock.kinesis.write.mark_pace import MUCH_WAL_BYTES, MarkPace


def test_the_first_one_goes_at_once_and_at_rest_one_in_ten_seconds() -> None:
    pace = MarkPace(interval_s=0.1, now=100.0)
    assert pace.due_at(at_rest=True) == 100.0
    pace.sent(100.5, 200)
    assert pace.due_at(at_rest=True) == 110.5


def test_records_that_wait_bring_it_after_the_interval() -> None:
    pace = MarkPace(interval_s=0.1, now=100.0)
    pace.sent(100.0, 200)
    assert pace.due_at(at_rest=False) == 100.1


def test_much_wal_without_records_brings_it_after_a_second() -> None:
    """Postgres keeps it until a manifest speaks of it."""
    pace = MarkPace(interval_s=0.1, now=100.0)
    pace.sent(100.0, 200)
    assert pace.due_at(at_rest=True, passed_bytes=MUCH_WAL_BYTES) == 101.0
    assert pace.due_at(at_rest=True, passed_bytes=MUCH_WAL_BYTES - 1) == 110.0
    assert pace.due_at(at_rest=False, passed_bytes=MUCH_WAL_BYTES) == 100.1
    slow = MarkPace(interval_s=5.0, now=100.0)
    slow.sent(100.0, 200)
    assert slow.due_at(at_rest=True, passed_bytes=MUCH_WAL_BYTES) == 105.0


def test_large_ones_come_more_rarely() -> None:
    pace = MarkPace(interval_s=0.1, bytes_per_s=50_000, now=100.0)
    pace.sent(100.0, 25_000)
    assert pace.due_at(at_rest=False) == 100.5


def test_a_failed_one_waits_for_its_backoff_and_at_rest_no_longer() -> None:
    pace = MarkPace(interval_s=0.1, now=100.0)
    pace.sent(100.0, 200)
    pace.failed(110.0, 0.4)
    assert pace.due_at(at_rest=False) == 110.4
    assert pace.due_at(at_rest=True) == 110.4

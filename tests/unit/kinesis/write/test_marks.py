"""Marks: what a request costs. What manifests say is proved by the model in tests/properties."""

from __future__ import annotations

import pytest

from penstock.kinesis.aws.outcome import Taken
from penstock.kinesis.write import marks as marks_module
from penstock.kinesis.write.event import ChangeEvent
from penstock.kinesis.write.marks import Marks
from penstock.kinesis.write.tally import Records, Tally
from tests.kinesis_answers import entries


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records were counted in each step."""
    steps: list[int] = []

    class Counting(Tally):
        def add(self, some: Records) -> None:
            steps.append(len(some.places))
            super().add(some)

    monkeypatch.setattr(marks_module, "Tally", Counting)
    return steps


def request(*places: int) -> list[ChangeEvent]:
    return [ChangeEvent(at, b"", "k", 9, place, at, 0.0) for at, place in enumerate(places)]


def accept(marks: Marks, events: list[ChangeEvent], frontier_lsn: int) -> None:
    marks.accepted(events, Taken.of(entries([None] * len(events))), frontier_lsn)


def mixed(records: int) -> list[ChangeEvent]:
    """Changes of one key wait for each other, so the transactions of a request stand in any order."""
    return request(*[100 + 10 * (at % 3) for at in range(records)])


def test_an_ordinary_request_is_counted_at_once_but_for_what_is_open(counted: list[int]) -> None:
    marks = Marks(0)
    accept(marks, request(*[100] * 10, *[110] * 20, *[120] * 5), 120)
    assert counted == [30, 5], "what is complete, and the open transaction's part"
    accept(marks, request(*[120] * 30, *[130] * 4), 130)
    draft = marks.draft(130)
    assert counted == [30, 5, 30, 4], "nothing is counted twice"
    assert (draft.tally.records, draft.resolved_lsn) == (65, 130)


def test_a_long_transaction_is_counted_as_it_comes(counted: list[int]) -> None:
    marks = Marks(0)
    for _ in range(3):
        accept(marks, request(*[100] * 50), 100)
    assert counted == [50, 50, 50]
    assert (marks.is_waiting(100), marks.is_waiting(101)) == (False, True)
    assert marks.draft(100).tally.records == 0
    marks.settle()
    assert marks.draft(101).tally.records == 150


def test_one_that_overtakes_others_waits_for_the_frontier(counted: list[int]) -> None:
    marks = Marks(0)
    accept(marks, request(110, 120, 130), 100)
    assert counted == []
    assert marks.draft(125).tally.records == 2
    assert counted == [2]


@pytest.mark.parametrize("complete", [1, 3])
def test_a_request_in_any_order_is_counted_once_for_a_draft(counted: list[int], complete: int) -> None:
    marks = Marks(0)
    accept(marks, mixed(300), 100)
    assert counted == [], "nobody has asked"
    draft = marks.draft(100 + 10 * complete)
    assert counted == [100 * complete]
    assert (draft.tally.records, draft.resolved_lsn) == (100 * complete, 100 + 10 * complete)


def test_one_that_overtakes_for_long_is_counted_once_a_transaction(counted: list[int]) -> None:
    marks = Marks(0, most_uncounted=299)
    accept(marks, mixed(300), 100)
    assert counted == [100, 100, 100]


def test_what_overtakes_for_long_is_not_kept_record_by_record() -> None:
    marks = Marks(0, most_uncounted=1_000)
    for at in range(100):
        accept(marks, request(*[100 + at] * 50), 100)
        assert sum(len(each.records.places) for each in marks._uncounted) <= 1_000
    assert marks.draft(500).tally.records == 5_000


def test_the_frontier_may_pass_tallies_by_a_commit_alone() -> None:
    marks = Marks(100, most_uncounted=0)
    accept(marks, request(100, 100), 100)
    assert not marks.is_waiting(100)
    assert marks.is_waiting(110)
    assert marks.complete_lsn(110) == 110


@pytest.mark.parametrize("records", [1, 2, 10])
@pytest.mark.parametrize("lag", [30, 120, 500])
def test_a_frontier_that_keeps_its_distance_resolves_all_the_same(lag: int, records: int) -> None:
    """A key at its limit may be far behind the others for as long as they are written to."""
    marks = Marks(0, most_spans=20, most_uncounted=20)
    told = behind = 0
    for first in range(1, 10_000, records):
        frontier_lsn = max(1, first - lag)
        accept(marks, request(*range(first, first + records)), frontier_lsn)
        if first % 50 == 1:
            draft = marks.draft(frontier_lsn)
            marks.settle()
            told += draft.tally.records
            assert told == draft.resolved_lsn - 1
            behind = max(behind, frontier_lsn - draft.resolved_lsn)
    assert behind <= lag
    assert told > 10_000 - 3 * lag

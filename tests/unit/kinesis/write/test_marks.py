"""Marks: what a request costs. What manifests say is proved by the model in tests/properties."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from penstock.kinesis.aws.outcome import Entry
from penstock.kinesis.write import marks as marks_module
from penstock.kinesis.write.event import ChangeEvent
from penstock.kinesis.write.marks import MarkableRecord, Marks, Tally
from tests.kinesis_answers import entries


@pytest.mark.parametrize("complete", [0, 1, 3])
def test_a_request_is_counted_in_as_many_steps_as_it_has_transactions(
    monkeypatch: pytest.MonkeyPatch, complete: int
) -> None:
    """Changes of one key wait for each other, so the transactions of a request stand in any order."""
    counted: list[int] = []

    class Counting(Tally):
        def add(self, events: Sequence[MarkableRecord], entries: Sequence[Entry]) -> None:
            counted.append(len(events))
            super().add(events, entries)

    monkeypatch.setattr(marks_module, "Tally", Counting)
    marks = Marks(0)
    places = [100 + 10 * (at % 3) for at in range(300)]
    events = [ChangeEvent(at, b"", "k", 9, place, at, 0.0) for at, place in enumerate(places)]

    marks.accepted(events, entries([None] * len(events)), 100 + 10 * complete)

    assert sum(counted) == len(events)
    assert len(counted) <= 4
    assert marks.waiting_records == 100 * complete

"""TaskPublisher: half failures keep each key in order, and what can't be delivered ends the task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count

import pytest

from penstock.kinesis.aws.outcome import (
    Accepted,
    Answered,
    Entry,
    Failed,
    Refused,
    Result,
    Taken,
    is_in_order,
)
from penstock.kinesis.write.event import ChangeEvent
from penstock.lake.errors import StorageFailed
from penstock.lake.stream import publishing
from penstock.lake.stream.publishing import TaskPublisher
from penstock.model.relation import Relation


class Sink:
    """A stream of one shard that does with a request's records what a test says."""

    def __init__(self, judge: Callable[[int, ChangeEvent], str | None]) -> None:
        self._judge = judge
        self._numbers = count(1)
        self.requests = 0
        self.taken: list[tuple[str, int, int]] = []

    def put_records(self, events: Sequence[ChangeEvent], may_send: Callable[[], bool]) -> Result:
        assert may_send()
        entries = []
        for event in events:
            code = self._judge(self.requests, event)
            number = next(self._numbers)
            if code is None:
                self.taken.append((event.partition_key, event.commit_lsn, number))
            entries.append(Entry(error=code, shard="s", sequence="" if code else str(number)))
        self.requests += 1
        keys = [event.partition_key for event in events]
        return Accepted(Taken.of(entries)) if is_in_order(keys, entries) else Answered(entries)

    def probe(self) -> Failed | None:
        return None

    def credentials_expire_at(self) -> float | None:
        return None

    def complaint(self) -> str | None:
        return None

    def close(self) -> None:
        pass


class Fixed(Sink):
    """Always gives one answer."""

    def __init__(self, answer: Result) -> None:
        super().__init__(lambda request, event: None)
        self._answer = answer

    def put_records(self, events: Sequence[ChangeEvent], may_send: Callable[[], bool]) -> Result:
        return self._answer


def events(number: int, size: int = 20) -> Iterator[ChangeEvent]:
    for lsn in range(1, number + 1):
        relation = Relation("public", "t")
        yield ChangeEvent(lsn, b"{}", f"k{lsn % 7}", size, lsn, 0, 0.0, table=relation)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "full_jitter", lambda attempt, rng: 0.0)


def test_the_last_occurrences_of_a_key_stand_in_order_whatever_fails() -> None:
    refused: set[tuple[int, int]] = set()

    def judge(request: int, event: ChangeEvent) -> str | None:
        # Each third record fails once, and each ninth twice.
        fails = (event.commit_lsn % 3 == 0) + (event.commit_lsn % 9 == 0)
        for time in range(fails):
            if (event.commit_lsn, time) not in refused:
                refused.add((event.commit_lsn, time))
                return "ProvisionedThroughputExceededException"
        return None

    sink = Sink(judge)
    tally = TaskPublisher("stream", sink).publish(events(2_000))
    assert tally.records == 2_000
    last: dict[str, dict[int, int]] = {}
    for key, lsn, number in sink.taken:
        last.setdefault(key, {})[lsn] = number
    for found in last.values():
        assert [lsn for lsn, _ in sorted(found.items(), key=lambda pair: pair[1])] == sorted(found)
    shard = tally.shards()["s"]
    assert int(shard.last) == max(number for _, _, number in sink.taken)


@pytest.mark.parametrize(
    ("size", "number", "at_most"), [(10 << 20, 50, 2), (100_000, 2_000, 178), (20, 20_000, 5_500)]
)
def test_few_events_wait_in_memory_if_they_are_large(size: int, number: int, at_most: int) -> None:
    """Also while the stream takes only half of what it gets."""
    asked = 0

    def coming() -> Iterator[ChangeEvent]:
        nonlocal asked
        for event in events(number, size):
            asked += 1
            assert asked - len(accepted) <= at_most
            yield event

    accepted: set[int] = set()

    def judge(request: int, event: ChangeEvent) -> str | None:
        if request % 2 and event.commit_lsn % 2:
            return "ProvisionedThroughputExceededException"
        accepted.add(event.commit_lsn)
        return None

    assert TaskPublisher("stream", Sink(judge)).publish(coming()).records == number
    assert len(accepted) == number


@pytest.mark.parametrize(
    ("sink", "what"),
    [
        (Fixed(Refused("ValidationException", "no")), "refuses a change of public.t at 0/1:0"),
        (Fixed(Failed("AccessDenied", "no", stream_fault=True)), "stream stream: AccessDenied: no"),
        (
            Fixed(Failed("InternalFailure", "no", stream_fault=False)),
            "has accepted nothing for 0 s: Internal",
        ),
    ],
)
def test_what_can_not_be_delivered_ends_the_task(
    sink: Sink, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "_REFUSAL_PATIENCE_S", 0.0)
    monkeypatch.setattr(publishing, "PATIENCE_S", 0.1)
    with pytest.raises(StorageFailed, match=what):
        TaskPublisher("stream", sink).publish(events(1))

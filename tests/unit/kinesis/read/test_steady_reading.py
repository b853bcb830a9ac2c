"""A reading that goes on where its reader stopped, and begins again where it didn't."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from penstock.kinesis.marked.manifest import Manifest
from penstock.kinesis.read.errors import RecordsExpired
from penstock.kinesis.read.manifest_log import Place
from penstock.kinesis.read.steady_reading import SteadyReading
from penstock.model.stream_position import StreamPosition


class Log:
    """Ten manifests, and those that come later; tells behind which places it was read."""

    def __init__(self) -> None:
        self.count = 10
        self.readings: list[int] = []
        self.expires_at: int | None = None

    def fetch(self, after: Place | None) -> Iterator[tuple[Place, Manifest]]:
        first = 0 if after is None else after.sequence
        self.readings.append(first)
        for number in range(first + 1, self.count + 1):
            if number == self.expires_at:
                self.expires_at = None
                raise RecordsExpired("the shard is no more")
            since, resolved = (str(StreamPosition(1, lsn)) for lsn in (number, number + 1))
            yield at(number), Manifest("R", "7", "slot", "0" * 12, since, resolved, 0, 0, {}, {})


def at(number: int) -> Place:
    return Place("s", number)


def taken(reading: SteadyReading, behind: int, most: int | None = None) -> list[int]:
    found = reading.behind(at(behind) if behind else None)
    return [place.sequence for place, _ in islice(found, most)]


def test_it_goes_on_where_it_stopped_and_ends_with_what_is_there_now() -> None:
    log = Log()
    reading = SteadyReading(log.fetch)
    assert taken(reading, 0, 3) == [1, 2, 3]
    assert taken(reading, 3, 2) == [4, 5]
    assert log.readings == [0]
    assert taken(reading, 5) == [6, 7, 8, 9, 10]
    assert log.readings == [0, 10]
    log.count = 12
    assert taken(reading, 10) == [11, 12]
    assert log.readings == [0, 10, 10]


def test_what_was_given_and_not_used_is_given_again() -> None:
    log = Log()
    reading = SteadyReading(log.fetch)
    assert taken(reading, 0, 3) == [1, 2, 3]
    assert taken(reading, 2, 2) == [3, 4]
    assert taken(reading, 7, 1) == [8]
    assert log.readings == [0, 2, 7]


def test_a_shard_that_expires_between_two_calls_is_left_to_a_new_reading() -> None:
    log = Log()
    reading = SteadyReading(log.fetch)
    assert taken(reading, 0, 3) == [1, 2, 3]
    log.expires_at = 6
    assert taken(reading, 3) == [4, 5, 6, 7, 8, 9, 10]
    assert log.readings == [0, 5]

"""The sieve: each position once, the counts of manifests, and no more in mind than one portion's."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from penstock.kinesis.marked.prefix import MarkPrefix
from penstock.kinesis.read.client import ReadRecord
from penstock.kinesis.read.errors import RecordsUnusable
from penstock.kinesis.read.marked_ranges import Portion, Sieve
from penstock.model.stream_position import History, StreamPosition

BY = "0123456789ab"
ANOTHER = "ba9876543210"
PREFIXES = {by: MarkPrefix(History(1, {}), by) for by in (BY, ANOTHER)}
ROW, POINTER = b'{"action":"I"}', b'{"action":"Q"}'
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def at(lsn: int) -> bytes:
    return str(StreamPosition(1, lsn)).encode()


def portion(first_lsn: int, count: int, **lasts: int) -> Portion:
    """Of transactions of one change, an LSN each."""
    since, resolved = at(first_lsn), at(first_lsn + count)
    return Portion(BY.encode(), since, resolved, since, resolved, count, tuple(lasts.items()))


def record(number: int, lsn: int, payload: bytes = ROW, by: str = BY) -> ReadRecord:
    data = PREFIXES[by].put(payload, lsn, 0)
    assert data is not None
    return ReadRecord(number, "key", data, NOW)


def kept(sieve: Sieve, *records: tuple[int, int]) -> list[int]:
    found = (sieve.keep(record(*each)) for each in records)
    return [StreamPosition.parse(each.position).commit_lsn for each in found if each is not None]


def test_what_has_ended_is_forgotten_and_its_repeats_are_not_taken() -> None:
    sieve = Sieve([portion(100, 3, s=12), portion(103, 2, s=15)])
    sieve.enter("s")
    assert kept(sieve, (10, 100), (11, 101), (12, 102)) == [100, 101, 102]
    assert sieve.held == 3
    assert kept(sieve, (13, 103), (14, 100), (15, 104)) == [103, 104]
    assert sieve.held == 2
    sieve.leave()
    assert sieve.held == 0


def test_a_portion_of_two_shards_ends_with_the_second() -> None:
    sieve = Sieve([portion(100, 3, s=12, t=21)])
    sieve.enter("s")
    assert kept(sieve, (11, 100), (12, 101)) == [100, 101]
    sieve.leave()
    assert sieve.held == 2
    sieve.enter("t")
    assert kept(sieve, (20, 100), (21, 102)) == [102]
    sieve.leave()
    assert sieve.held == 0


def test_one_that_lacks_something_is_an_error_when_it_ends() -> None:
    sieve = Sieve([portion(100, 3, s=12), portion(103, 2, s=15)])
    sieve.enter("s")
    assert kept(sieve, (10, 100), (12, 102)) == [100, 102]
    with pytest.raises(
        RecordsUnusable, match="the stream has 2 changes from 0/64 to 0/67, and its manifest says 3"
    ):
        sieve.keep(record(13, 103))


def test_an_original_takes_the_place_of_its_pointer() -> None:
    sieve = Sieve([portion(100, 1, s=12)])
    sieve.enter("s")
    assert sieve.keep(record(11, 100, POINTER)) is None
    original = sieve.keep(record(12, 100))
    assert original is not None
    assert original.payload == ROW
    sieve.leave()
    assert list(sieve.pointers()) == []


def test_another_sender_s_record_is_no_original_of_a_pointer() -> None:
    """Two slots write to one stream, or a leadership is followed by one with other filters."""
    sieve = Sieve([portion(100, 1, s=13)])
    sieve.enter("s")
    assert sieve.keep(record(11, 100, by=ANOTHER)) is None
    assert sieve.keep(record(12, 100, POINTER)) is None
    assert sieve.keep(record(13, 100, by=ANOTHER)) is None
    sieve.leave()
    (pointer,) = sieve.pointers()
    assert pointer.payload == POINTER
    assert pointer.record.sequence == 12

"""The chain of manifests: across timelines, and behind a gap, however many are held back."""

from __future__ import annotations

import time

import pytest

from penstock.demo.stream_reader import StreamBroken, StreamReader
from penstock.kinesis.marked.manifest import Manifest, encode
from penstock.kinesis.read.chain import MOST_HELD, Chain, HistoryLost
from penstock.model.lsn import format_lsn
from penstock.model.stream_position import StreamPosition

SWITCH = 100


def at(timeline: int, lsn: int) -> str:
    return str(StreamPosition(timeline, lsn))


def manifest(since: tuple[int, int], resolved: tuple[int, int]) -> Manifest:
    history = [(1, format_lsn(SWITCH))] if resolved[0] == 2 else []
    return Manifest("R", "7", "slot", "0" * 12, at(*since), at(*resolved), 0, 0, {}, {}, history)


@pytest.mark.parametrize(
    ("applied", "since", "resolved", "is_lost"),
    [
        ((1, 90), (1, 90), (2, 120), False),
        ((1, SWITCH), (1, SWITCH), (2, 120), False),
        ((1, SWITCH + 1), (1, 90), (2, 120), True),
        # The slot was made anew: it begins beyond what was applied, and that is no mere gap.
        ((1, 110), (2, 115), (2, 120), True),
        ((1, 90), (2, 115), (2, 120), False),
        # The old primary's last word.
        ((2, 120), (1, 90), (1, 130), False),
        # Its manifests don't reach what was applied.
        ((1, 110), (1, 90), (1, 110), False),
    ],
)
def test_what_never_happened_is_said_at_once(
    applied: tuple[int, int], since: tuple[int, int], resolved: tuple[int, int], is_lost: bool
) -> None:
    next_one = manifest(since, resolved)
    chain = Chain[int](slot="slot", system="7", applied=at(*applied), place=0)
    plain = StreamReader("7", "slot", lambda *_: (), at(*applied))
    if is_lost:
        with pytest.raises(HistoryLost, match="a standby was promoted that had not all of it"):
            chain.take(next_one, 1)
        with pytest.raises(StreamBroken, match="never happened"):
            list(plain.transactions([encode(next_one)]))
    else:
        chain.take(next_one, 1)
        assert list(plain.transactions([encode(next_one)])) == []
        assert chain.applied == plain.applied
        assert (chain.gap is not None) == (at(*since) > at(*applied))


def test_many_are_held_behind_a_gap_and_taken_from_there_in_a_moment() -> None:
    """A query that was stopped for longer than retention finds nothing but these."""
    count = 50_000
    chain = Chain[int](slot="slot", system="7", applied=at(1, 10), place=0)
    behind = [manifest((1, 20 + number), (1, 21 + number)) for number in range(count)]
    began_at = time.thread_time()
    for place, each in enumerate(behind, start=1):
        assert chain.take(each, place) == []
        assert chain.is_full is (place > MOST_HELD)
    assert chain.resume_at == 0
    assert "the next manifest begins at 0/14" in str(chain.gap)
    start, links = chain.leap()
    seconds = time.thread_time() - began_at
    assert start == at(1, 20)
    assert [place for _, place in links] == [*range(1, count), count]
    assert chain.gap is None
    assert not chain.is_full
    assert seconds < 5, "each of them costs as much as all"

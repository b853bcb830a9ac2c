"""The chain of manifests across timelines: what was applied must have happened in what goes on."""

from __future__ import annotations

import pytest

from penstock.demo.stream_reader import StreamBroken, StreamReader
from penstock.kinesis.marked.manifest import Manifest, encode
from penstock.kinesis.read.chain import Chain, HistoryLost
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

"""Manifests that are held back, against a list that is searched as a whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.kinesis.marked.manifest import Manifest
from penstock.kinesis.read.held_back import HeldBack
from penstock.model.stream_position import StreamPosition

SPANS = st.tuples(st.integers(0, 12), st.integers(0, 6))
"""Where one begins, and how far it goes."""
STEPS = st.lists(st.one_of(SPANS, st.integers(1, 3)), max_size=40)
"""One comes; or something is applied, so much further on."""


def at(lsn: int) -> str:
    return str(StreamPosition(1, lsn))


@given(STEPS)
def test_the_same_ones_in_the_same_order(steps: list[tuple[int, int] | int]) -> None:
    held, naive, applied = HeldBack[int](), list[tuple[Manifest, int]](), 0
    for place, step in enumerate(steps):
        if isinstance(step, int):
            applied += step
            ready = [each for each in naive if each[0].since <= at(applied)]
            expected = min(ready, key=lambda each: each[0].resolved, default=None)
            if expected is not None:
                naive.remove(expected)
            assert held.take(at(applied)) is (None if expected is None else expected[0])
            beyond = [each.since for each, _ in naive if each.since > at(applied)]
            assert held.begins == min(beyond, default=None)
        else:
            since, length = step
            resolved = at(since + length)
            manifest = Manifest("R", "7", "slot", f"{place:012d}", at(since), resolved, 0, 0, {}, {})
            held.add(manifest, place)
            naive.append((manifest, place))
        assert len(held) == len(naive)
        assert held.before(-1) == (naive[0][1] if naive else -1)

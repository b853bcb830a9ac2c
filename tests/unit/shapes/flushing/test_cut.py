from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shapes.flushing import cut
from penstock.shapes.flushing.cut import Patience, given_up_when


def test_each_attempt_that_took_its_time_in_vain_lets_the_next_take_twice_as_long() -> None:
    patience, now = Patience(), 100.0
    lasted = []
    for _ in range(8):
        patience.begin(now)
        limit_s = next(s for s in range(10, 10_000, 10) if patience.is_over(now + s, log_is_half_full=False))
        assert not patience.is_over(now + limit_s - 0.1, log_is_half_full=False)
        now += limit_s
        patience.given_up(now)
        lasted.append(limit_s)
    assert lasted == [10, 20, 40, 80, 160, 320, 640, 640]
    patience.succeeded()
    patience.begin(now)
    assert patience.is_over(now + 10.0, log_is_half_full=False)


@given(after_s=st.floats(0.0, 9.9))
def test_a_log_that_fills_ends_an_attempt_at_once_and_the_next_takes_no_longer(after_s: float) -> None:
    patience = Patience()
    patience.begin(5.0)
    assert patience.is_over(5.0 + after_s, log_is_half_full=True)
    patience.given_up(5.0 + after_s)
    patience.begin(100.0)
    assert patience.is_over(110.0, log_is_half_full=False)


async def test_what_is_given_up_ends_there_and_what_ends_before_is_left_in_peace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cut, "_LOOK_EVERY_S", 0.01)
    with pytest.raises(TimeoutError):
        async with given_up_when(lambda: True):
            await asyncio.Event().wait()
    async with given_up_when(lambda: True):
        pass
    await asyncio.sleep(0.03)
    with pytest.raises(KeyError):
        async with given_up_when(lambda: False):
            raise KeyError("its own")

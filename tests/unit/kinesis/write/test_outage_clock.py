from __future__ import annotations

from penstock.kinesis.write.outage import OutageClock

LIMIT_S = 30.0


def clock() -> OutageClock:
    return OutageClock(limit_s=LIMIT_S, now=100.0)


def test_silence_after_a_failure_is_an_outage() -> None:
    some = clock()
    some.failed()

    assert not some.is_out(129.9, oldest_request=None)
    assert some.look_again_at(oldest_request=None) == 130.0
    assert some.is_out(130.0, oldest_request=None)
    assert some.silent_s(130.0) == 30.0


def test_a_judgement_ends_it() -> None:
    some = clock()
    some.failed()
    some.judged(129.0)

    assert not some.is_out(1e6, oldest_request=None), "it only waits for a backoff"
    some.failed()
    assert not some.is_out(158.9, oldest_request=None)
    assert some.is_out(159.0, oldest_request=None)


def test_a_request_that_hangs_is_an_outage() -> None:
    some = clock()

    assert not some.is_out(135.0, oldest_request=106.0)
    assert some.look_again_at(oldest_request=106.0) == 136.0
    assert some.is_out(136.0, oldest_request=106.0)


def test_nothing_to_send_starts_it_anew() -> None:
    some = clock()
    some.failed()
    some.rest(200.0)

    assert not some.is_out(1e6, oldest_request=None)


def test_nobody_is_woken_for_nothing() -> None:
    """At the moment for which one is woken it is out: one that has passed is no loop that never sleeps."""
    some = clock()
    assert some.look_again_at(oldest_request=None) is None
    for oldest in (90.0, 150.0, 170.0):
        again = some.look_again_at(oldest_request=oldest)
        assert again is not None
        assert some.is_out(again, oldest_request=oldest)
    some.failed()
    again = some.look_again_at(oldest_request=None)
    assert again is not None
    assert some.is_out(again, oldest_request=None)

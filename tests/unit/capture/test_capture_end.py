"""The last second of a capture: who waits for whom, and for how long."""

from __future__ import annotations

from penstock.capture import app
from penstock.capture.leadership import LAST_WORDS_S, RELEASE_S


def test_the_process_waits_for_its_leaderships_last_words_and_less_than_a_second() -> None:
    """SIGTERM ends a process within SHUTDOWN_DRAIN_S and a second."""
    assert vars(app)["RELEASE_S"] is RELEASE_S
    assert LAST_WORDS_S < RELEASE_S < 1.0

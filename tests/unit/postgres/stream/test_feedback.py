from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from penstock.capture.ack import AckTracker
from penstock.errors import LineLost
from penstock.postgres.stream.feedback import Feedback


class Status(NamedTuple):
    write: int
    flush: int
    reply_requested: bool


class Line:
    """Keeps what was sent."""

    def __init__(self) -> None:
        self.sent: list[Status] = []
        self.enough = asyncio.Event()

    def send_status(self, *, write: int, flush: int, reply_requested: bool = False) -> None:
        self.sent.append(Status(write, flush, reply_requested))
        if len(self.sent) == 3:
            self.enough.set()


class BrokenLine:
    def send_status(self, *, write: int, flush: int, reply_requested: bool = False) -> None:
        raise LineLost("cut")


def feedback(line: Line, tracker: AckTracker, *received: int) -> Feedback:
    """The last position received stays."""
    positions: Iterator[int] = iter(received)
    last = received[-1]
    return Feedback(line=line, tracker=tracker, received_lsn=lambda: next(positions, last))


def test_written_is_what_was_received_and_flushed_is_the_frontier() -> None:
    line = Line()

    feedback(line, AckTracker(initial_lsn=100), 500).send()

    assert line.sent == [Status(500, 100, False)]


def test_it_is_sent_once_a_move_of_the_frontier() -> None:
    line, tracker = Line(), AckTracker(initial_lsn=100)
    back = feedback(line, tracker, 500)
    back.send_if_moved()
    back.send_if_moved()
    assert line.sent == [Status(500, 100, False)]

    tracker.mark_published_by_id(tracker.register(300))
    back.send_if_moved()
    back.send_if_moved()

    assert line.sent[1:] == [Status(500, 300, False)]
    assert back.confirmed_lsn == 300


def test_what_is_pending_is_not_reported() -> None:
    line, tracker = Line(), AckTracker(initial_lsn=100)
    tracker.register(300)

    feedback(line, tracker, 500).send()

    assert line.sent[0].flush == 100


def test_nothing_is_confirmed_that_was_not_received() -> None:
    """A flush position in the future is believed, and loses data later."""
    line = Line()
    back = feedback(line, AckTracker(initial_lsn=800), 500)

    back.send()

    assert line.sent == [Status(500, 500, False)]
    assert back.confirmed_lsn == 500


def test_a_confirmation_is_never_taken_back() -> None:
    line = Line()
    back = feedback(line, AckTracker(initial_lsn=800), 500, 400)

    back.send()
    back.send()

    assert [status.flush for status in line.sent] == [500, 500]


def test_a_broken_line_is_reported() -> None:
    broken = Feedback(line=BrokenLine(), tracker=AckTracker(initial_lsn=1), received_lsn=lambda: 1)

    with pytest.raises(LineLost):
        broken.send_if_moved()


async def test_the_heartbeat_starts_at_once_and_asks_for_an_answer_each_time() -> None:
    line = Line()
    tracker = AckTracker(initial_lsn=100)
    quick = Feedback(line=line, tracker=tracker, received_lsn=lambda: 500, heartbeat_s=0.001)

    beating = asyncio.create_task(quick.run())
    await line.enough.wait()
    beating.cancel()

    assert line.sent[:3] == [Status(500, 100, True)] * 3
    with pytest.raises(asyncio.CancelledError):
        await beating

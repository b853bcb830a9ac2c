"""What is due after every run of frames: leadership was vouched for, and the server may want an answer."""

from __future__ import annotations

from penstock.clock import awake_or_asleep
from penstock.postgres.leader.freshness import Freshness
from penstock.postgres.stream import protocol
from penstock.postgres.stream.feedback import Feedback
from penstock.postgres.stream.walk import FrameWalk


class Answering:
    """Ties a walk over frames to the way back."""

    def __init__(self, walk: FrameWalk, feedback: Feedback, freshness: Freshness) -> None:
        self._walk = walk
        self._feedback = feedback
        self._freshness = freshness

    def after_take(self) -> None:
        """Frames were taken: they prove that we lead, and what they moved is reported."""
        walk = self._walk
        self._freshness.frame_sent(protocol.unix_seconds(walk.server_time_us), now=awake_or_asleep())
        if walk.reply_requested:
            walk.reply_requested = False
            self._feedback.send()
        else:
            self._feedback.send_if_moved()

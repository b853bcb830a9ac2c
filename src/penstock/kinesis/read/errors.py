"""What can be wrong with a stream that is read."""

from __future__ import annotations

from penstock.errors import PenstockError


class StreamReadError(PenstockError):
    """The stream can't be read as it was asked; the sentence says why, and what to do."""


class RecordsExpired(StreamReadError):
    """Records that are needed are no longer in the stream: its retention has passed them."""


class AnotherStream(StreamReadError):
    """A position is of a stream that was deleted, and created again under its name."""

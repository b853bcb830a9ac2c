"""What can be wrong with a stream that is read."""

from __future__ import annotations

from typing import Self

from penstock.errors import PenstockError


class StreamReadError(PenstockError):
    """The stream can't be read as it was asked; the sentence says why, and what to do."""


class RecordsExpired(StreamReadError):
    """Records that are needed are no longer in the stream: its retention has passed them."""

    @classmethod
    def with_shards(cls, names: str) -> Self:
        """They were in shards that are no more."""
        return cls(
            f"{names}: no such shard any more, and manifests speak of records in it: the stream's retention"
            " has passed them. Fix: begin again, with a new snapshot of what is kept downstream"
        )


class RecordsUnusable(StreamReadError):
    """The stream isn't what its manifests say, or has a change that nothing can be made of."""


class AnotherStream(StreamReadError):
    """A position is of a stream that was deleted, and created again under its name."""

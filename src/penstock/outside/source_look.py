"""What the marked stream that shapes read tells: how far it is, and how far back it goes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from penstock.errors import PenstockError
from penstock.kinesis.read.manifest_ages import RECENT, Needed
from penstock.kinesis.read.manifest_log import Arrived
from penstock.kinesis.read.marked_stream import MarkedStream, StreamAddress
from penstock.model.stream_position import StreamPosition


class SourceFacts(NamedTuple):
    """What was read."""

    address: StreamAddress
    asked_at: datetime
    """By the clock of Kinesis."""
    retention: timedelta | None = None
    newest: Arrived | None = None
    """The manifest that reaches furthest; None: none came within `looked_back`."""
    looked_back: timedelta = RECENT
    needed: StreamPosition | None = None
    """Where the slowest shape needs changes from; None: all begin with a snapshot."""
    first: Needed | None = None
    """With what that begins, or what is left."""
    problem: str | None = None
    """Why the rest can't be told."""


class SourceLook:
    """Looks at one stream. It changes nothing."""

    def __init__(self, address: StreamAddress, patience_s: float) -> None:
        """`patience_s`: how long the stream may be silent. SettingsError if the AWS settings are no good."""
        self._address = address
        self._back = max(RECENT, timedelta(seconds=patience_s))
        self._stream = MarkedStream(address)

    def look(self, needed: StreamPosition | None) -> SourceFacts:
        """`needed`: where the slowest shape needs changes from. Blocks."""
        facts = SourceFacts(self._address, datetime.now(UTC), needed=needed)
        try:
            newest = self._stream.newest(self._back)
            facts = facts._replace(
                retention=self._stream.retention(),
                newest=newest,
                looked_back=self._back,
                asked_at=self._stream.now,
            )
            if needed is not None:
                return facts._replace(first=self._stream.first_needed(needed))
            if facts.newest is None:
                # A stream without any is another matter than one that has none of late.
                self._stream.begin(None)
            return facts
        except PenstockError as error:
            return facts._replace(problem=str(error))

    def close(self) -> None:
        """Close idle connections."""
        self._stream.close()

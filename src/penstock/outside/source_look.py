"""What the marked stream that shapes read tells: how far it is, and how far back it goes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from penstock.errors import PenstockError
from penstock.kinesis.read.manifest_log import Arrived
from penstock.kinesis.read.marked_stream import MarkedStream, StreamAddress
from penstock.model.stream_position import StreamPosition


class SourceFacts(NamedTuple):
    """What was read."""

    address: StreamAddress
    asked_at: datetime
    retention: timedelta | None = None
    newest: Arrived | None = None
    """The manifest that reaches furthest; None: none came in the last half hour."""
    needed: StreamPosition | None = None
    """Where the slowest shape needs changes from; None: all begin with a snapshot."""
    first: Arrived | None = None
    """The manifest with which that begins, or the first that is left."""
    problem: str | None = None
    """Why the rest can't be told."""


class SourceLook:
    """Looks at one stream. It changes nothing."""

    def __init__(self, address: StreamAddress) -> None:
        """SettingsError if the AWS configuration is no good."""
        self._address = address
        self._stream = MarkedStream(address)

    def look(self, needed: StreamPosition | None) -> SourceFacts:
        """`needed`: where the slowest shape needs changes from. Blocks."""
        facts = SourceFacts(self._address, datetime.now(UTC), needed=needed)
        try:
            facts = facts._replace(retention=self._stream.retention(), newest=self._stream.newest())
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

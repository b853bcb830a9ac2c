"""Where a stream is: for whoever writes or reads it, with Spark or without."""

from __future__ import annotations

from typing import NamedTuple

from penstock.kinesis.read.client import StreamClient


class StreamPlace(NamedTuple):
    """A stream, and how to reach it. Credentials are those of whoever opens it."""

    stream: str
    region: str
    endpoint_url: str | None = None

    def open(self) -> StreamClient:
        """A client of it."""
        return StreamClient(stream=self.stream, region=self.region, endpoint_url=self.endpoint_url)

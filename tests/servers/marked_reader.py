"""A reader of a marked stream that does what `format("penstock")` does, batch after batch, without Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator

from penstock.kinesis.read.marked_plan import MarkedOffset
from penstock.kinesis.read.marked_ranges import MarkedRecord, read_task
from penstock.sources.marked_driver import MarkedDriver
from penstock.sources.marked_query import MarkedQuery
from tests.servers.capture_site import CaptureSite


class MarkedReader:
    """Offsets and tasks are those of the data source; what Spark does in between is done here.

    The variables of the AWS SDK have to be set.
    """

    def __init__(self, site: CaptureSite, *, marks_stream: str | None = None, **options: str) -> None:
        named = {
            "streamName": site.stream,
            "marksStreamName": marks_stream or site.stream,
            "region": site.kinesis.region,
            "endpointUrl": site.kinesis.endpoint_url,
        }
        given = {f"kinesis.{name}": value for name, value in named.items()}
        self._query = MarkedQuery.parse({**given, "slot": site.slot, **options})
        self.driver = MarkedDriver(self._query)
        self.offset: MarkedOffset | None = None

    def read(self) -> list[list[bytes]]:
        """The transactions of the next batch: without limits, of all that is there now."""
        found: dict[str, list[bytes]] = {}
        for record in sorted(self.records(), key=lambda record: record.position):
            found.setdefault(record.position[:25], []).append(record.payload)
        return list(found.values())

    def read_all(self) -> list[list[bytes]]:
        """The same, batch after batch."""
        found: list[list[bytes]] = []
        while batch := self.read():
            found += batch
        return found

    def records(self) -> Iterator[MarkedRecord]:
        """The same, a record at a time, in no order. What was given counts as applied at the end only."""
        start = self.offset or self.driver.begin()
        if start is None:
            raise self.driver.unmarked()
        now = time.monotonic()
        end = self.driver.plan.advance(start, self._query.limits, now, up_to=self.driver.newest(start))
        for task in self.driver.tasks(start, end, now):
            client = self._query.open()
            try:
                yield from read_task(client, task)
            finally:
                client.close()
        self.offset = end

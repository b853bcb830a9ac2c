"""A database, a capture that marks its stream, and shapes that read from there."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

from structlog.testing import capture_logs

from penstock.local.kinesis import LocalKinesis
from penstock.postgres.leader.lock import slot_hash64
from tests.servers.capture_process import CaptureProcess
from tests.servers.capture_site import CaptureSite
from tests.servers.shapes_fixtures import RunOnce
from tests.servers.shapes_site import ShapesProcess, ShapesSite, shape_lines

COLUMNS = ("id", "v")
MARKED = {"KINESIS_MARKED_STREAM": "true", "SLOT_NOTE": "false", "KINESIS_MARK_INTERVAL_MS": "50"}
QUERIES = {
    "a": "SELECT id, v FROM a",
    "b": "SELECT id, v FROM b",
    "even": "SELECT id, v FROM a WHERE id % 2 = 0",
}
Events = list[MutableMapping[str, Any]]


class StreamedSite:
    """A database, a capture of it, and shapes that read what it writes."""

    def __init__(self, shapes: ShapesSite, kinesis: LocalKinesis, stream: str, run_once: RunOnce) -> None:
        self.shapes = shapes
        self.site = CaptureSite(shapes.postgres, shapes.database, kinesis, stream)
        self.url = f"kinesis://{stream}?slot={self.site.slot}"
        self.variables = kinesis.env()
        self._run_once = run_once

    @contextmanager
    def capturing(self) -> Iterator[CaptureProcess]:
        """With a capture that has made its slot."""
        with self.site.capture(**MARKED) as capture:
            capture.wait_for_log("streaming")
            yield capture

    def run(self, **over: str) -> ShapesProcess:
        """`penstock shapes --from`, as a process."""
        # Only the watchdog vouches for such a leader, and a busy machine may keep it waiting.
        patient = {"LEADER_TIMEOUT_S": "20"}
        return self.shapes.shapes("--from", self.url, **{**self.variables, **patient, **over})

    def wait_until_nobody_leads(self) -> None:
        """The server has noticed that killed shapes are gone; capture has a lock of its own."""
        key = slot_hash64(self.shapes.slot) & (2**64 - 1)
        held = f"SELECT 1 FROM pg_locks WHERE classid = {key >> 32} AND objid = {key & (2**32 - 1)}"
        self.shapes.wait_until(lambda: not self.shapes.sql(f"{held} AND locktype = 'advisory'"))

    def split(self, shard: str) -> None:
        """Split one of the stream's shards."""
        client, stream = self.site.kinesis.client, self.site.stream
        shards = client.list_shards(StreamName=stream)["Shards"]
        (keys,) = [each["HashKeyRange"] for each in shards if each["ShardId"] == shard]
        middle = (int(keys["StartingHashKey"]) + int(keys["EndingHashKey"])) // 2
        client.split_shard(StreamName=stream, ShardToSplit=shard, NewStartingHashKey=str(middle))

    def once(self, stream: str | None = None, *, expect: int = 0, **over: str) -> Events:
        """`penstock shapes --once`; what it logged."""
        with capture_logs() as events:
            code = self._run_once(self.shapes, stream=stream, **{"STALL_S": "60", **self.variables, **over})
        assert code == expect, [event for event in events if event["log_level"] in ("error", "warning")]
        return events

    def make_tables(self) -> None:
        """The tables and the shapes of QUERIES."""
        self.shapes.sql(
            "CREATE TABLE a (id int PRIMARY KEY, v text); CREATE TABLE b (id int PRIMARY KEY, v text);"
            " ALTER TABLE a REPLICA IDENTITY FULL;"
            " INSERT INTO a SELECT g, 'old' FROM generate_series(1, 100) g"
        )
        even = shape_lines("even", 'where = "id % 2 = 0"', table="a")
        self.shapes.write_file(shape_lines("a"), shape_lines("b"), even)

    def assert_equal(self) -> None:
        """Every table is what Postgres holds."""
        for shape, query in QUERIES.items():
            self.shapes.assert_equal(shape, COLUMNS, query)


def needed(events: Events) -> dict[str, str]:
    """The shapes that were snapshotted again, and why."""
    return {event["shape"]: event["reason"] for event in events if event["event"] == "snapshot_needed"}

"""Reading a stream: shards and pages of records, within Kinesis' limits. Blocks; for drivers and executors.

Credentials are those of the usual AWS chain of the process that calls; nothing of them is an argument.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final, NamedTuple

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from penstock.kinesis.aws.backoff import full_jitter
from penstock.kinesis.aws.session import one_line, open_session
from penstock.kinesis.read.errors import AnotherStream, RecordsExpired, StreamReadError
from penstock.kinesis.read.page_body import EVENT, PAGE, FoundPage, FoundRecord, take_page
from penstock.kinesis.read.shards import ShardInfo

SILENCE: Final = 40
"""So many empty pages at the end of an open shard mean that nothing comes: some ten seconds."""
MOST_RECORDS: Final = 10_000
_CALL_EVERY_S: Final = 0.25
"""Five calls a second are allowed to all readers of a shard together."""
_LARGE_PAGE: Final = 1 << 20
"""Half of what a shard gives in a second: whoever gets such pages is held up by Kinesis itself."""
_FIRST_BACKOFF_S: Final = 0.25
_LONGEST_BACKOFF_S: Final = 10.0
_PATIENCE_S: Final = 120.0
"""For a shard that gives nothing but errors that may pass."""
_TRANSIENT: Final = frozenset(
    {
        "ProvisionedThroughputExceededException",
        "LimitExceededException",
        "InternalFailure",
        "InternalFailureException",
        "ServiceUnavailable",
        "ThrottlingException",
        "KMSThrottlingException",
        "RequestTimeout",
    }
)
_GONE: Final = ("get_shard_iterator", "ResourceNotFoundException")
"""The shard is no more."""
_EXPIRED_ITERATOR: Final = "ExpiredIteratorException"
_FOREIGN: Final = "did not come from this stream"
_FIX_FOREIGN: Final = (
    " The stream was deleted and created again, or the position is another one's. Fix: begin again (a query"
    " of Spark's: with a new checkpoint), with a new snapshot of what is kept downstream"
)


class ReadRecord(NamedTuple):
    """A record, as GetRecords gives it."""

    sequence: int
    partition_key: str
    data: bytes
    arrived: datetime


class Page(NamedTuple):
    """What one call brought."""

    records: list[ReadRecord]
    behind_ms: int
    """How far behind the newest record of the shard; 0: all that there is was read."""
    is_last: bool
    """Whether the shard is closed, and this was its end."""


class Start(NamedTuple):
    """Where to begin in a shard: as GetShardIterator takes it."""

    kind: str
    sequence: int | None = None
    timestamp: datetime | None = None

    @classmethod
    def at(cls, sequence: int) -> Start:
        """With this record, or the first behind it that is still there."""
        return cls("AT_SEQUENCE_NUMBER", sequence)

    @classmethod
    def after(cls, sequence: int) -> Start:
        """Behind this record."""
        return cls("AFTER_SEQUENCE_NUMBER", sequence)

    @classmethod
    def arrived(cls, timestamp: datetime) -> Start:
        """With the first record that arrived in this second, or later."""
        # Whole seconds: versions of botocore differ in what they send of the rest.
        return cls("AT_TIMESTAMP", timestamp=timestamp.astimezone(UTC).replace(microsecond=0))


TRIM_HORIZON: Final = Start("TRIM_HORIZON")
LATEST: Final = Start("LATEST")


class StreamClient:
    """One stream, seen through ListShards, GetShardIterator and GetRecords."""

    def __init__(self, *, stream: str, region: str, endpoint_url: str | None = None) -> None:
        """`stream` is a name or an ARN. SettingsError if the AWS configuration is no good."""
        self.stream = stream
        self._named = {"StreamARN" if stream.startswith("arn:") else "StreamName": stream}
        # Retries are ours: a page that fails is asked for again, at a pace that leaves others their share.
        config = Config(connect_timeout=5, read_timeout=20, retries={"total_max_attempts": 1})
        self._client: Any = open_session(region).create_client(
            "kinesis", region_name=region, endpoint_url=endpoint_url, config=config
        )
        self._client.meta.events.register(EVENT, take_page)
        self._may_call_at: dict[str, float] = {}
        self._rng = random.Random()  # noqa: S311 - spreads retries, guards nothing
        self.listed_at: datetime | None = None
        """When Kinesis last listed the shards, by its own clock, in whole seconds; None: it doesn't tell."""

    def shards(self) -> list[ShardInfo]:
        """Every shard that retention still has, closed ones included."""
        found: list[ShardInfo] = []
        request: dict[str, Any] = dict(self._named)
        while True:
            answer = self._call("list_shards", **request)
            self.listed_at = _date(answer)
            found += map(_shard, answer["Shards"])
            if not answer.get("NextToken"):
                return found
            request = {"NextToken": answer["NextToken"]}

    def summary(self) -> dict[str, Any]:
        """What DescribeStreamSummary says."""
        answer = self._call("describe_stream_summary", **self._named)
        found: dict[str, Any] = answer["StreamDescriptionSummary"]
        return found

    def retention(self) -> timedelta:
        """For how long the stream keeps records."""
        return timedelta(hours=self.summary()["RetentionPeriodHours"])

    def pages(self, shard_id: str, start: Start, *, most: int = MOST_RECORDS) -> Iterator[Page]:
        """Pages from `start` on, for as long as the caller wants more, or until a closed shard ends.

        An empty page is no end: it only means that nothing was found this time. `most`: records a page. None
        is held here when the next is asked for: two large ones are more than a small process has room for.
        """
        iterator = self._iterator(shard_id, start)
        while True:
            may_call_at = self._may_call_at.get(shard_id, float("-inf"))
            time.sleep(max(0.0, may_call_at - time.monotonic()))
            self._may_call_at[shard_id] = time.monotonic() + _CALL_EVERY_S
            answer = self._call("get_records", ShardIterator=iterator, Limit=most)
            if answer is None:
                # It was not used for five minutes: the caller took its time.
                iterator = self._iterator(shard_id, start)
                continue
            found: FoundPage = answer.pop(PAGE)
            page, following = _page(found), found.next_shard_iterator
            del found
            if page.records:
                start = Start.after(page.records[-1].sequence)
            if sum(len(record.data) for record in page.records) >= _LARGE_PAGE:
                self._may_call_at.pop(shard_id, None)
            yield page
            del page
            if following is None:
                return
            iterator = following

    def close(self) -> None:
        """Close idle connections."""
        self._client.close()

    def _iterator(self, shard_id: str, start: Start) -> str:
        place: dict[str, Any] = {}
        if start.sequence is not None:
            place["StartingSequenceNumber"] = str(start.sequence)
        if start.timestamp is not None:
            place["Timestamp"] = start.timestamp
        answer = self._call(
            "get_shard_iterator", ShardId=shard_id, ShardIteratorType=start.kind, **place, **self._named
        )
        return str(answer["ShardIterator"])

    def _call(self, operation: str, **request: Any) -> Any:
        """The answer; None for an iterator that has expired. Waits out what may pass."""
        began_at = time.monotonic()
        attempt = 0
        while True:
            try:
                return getattr(self._client, operation)(**request)
            except ClientError as error:
                code = str(error.response.get("Error", {}).get("Code", ""))
                status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
                if code == _EXPIRED_ITERATOR:
                    return None
                if code not in _TRANSIENT and status < 500:
                    said = f"{self.stream}: {operation}: {one_line(error)}"
                    if _FOREIGN in str(error):
                        raise AnotherStream(said + _FIX_FOREIGN) from None
                    kind = RecordsExpired if (operation, code) == _GONE else StreamReadError
                    raise kind(said) from None
                failed: Exception = error
            except BotoCoreError as error:
                failed = error
            if time.monotonic() - began_at > _PATIENCE_S:
                raise StreamReadError(
                    f"{self.stream}: {operation} fails for {_PATIENCE_S:.0f} s: {one_line(failed)}"
                ) from None
            time.sleep(
                full_jitter(attempt, self._rng, first_s=_FIRST_BACKOFF_S, longest_s=_LONGEST_BACKOFF_S)
            )
            attempt += 1


def _date(answer: dict[str, Any]) -> datetime | None:
    text = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    return None if text is None else parsedate_to_datetime(text)


def _shard(found: dict[str, Any]) -> ShardInfo:
    keys = found["HashKeyRange"]
    parents = (found.get("ParentShardId"), found.get("AdjacentParentShardId"))
    return ShardInfo(
        found["ShardId"],
        int(keys["StartingHashKey"]),
        int(keys["EndingHashKey"]),
        tuple(parent for parent in parents if parent),
        "EndingSequenceNumber" in found["SequenceNumberRange"],
    )


def _page(found: FoundPage) -> Page:
    records = [_record(each) for each in found.records]
    return Page(records, found.millis_behind_latest or 0, found.next_shard_iterator is None)


def _record(found: FoundRecord) -> ReadRecord:
    return ReadRecord(
        int(found.sequence_number),
        found.partition_key,
        found.data,
        datetime.fromtimestamp(found.approximate_arrival_timestamp, UTC),
    )

"""Settings of the way to Kinesis."""

from __future__ import annotations

from typing import Annotated, NamedTuple, Self

from pydantic import Field, model_validator

from penstock.settings.kinds import (
    MIB,
    STREAM_ARN,
    Count,
    DirectoryUrl,
    Duration,
    Flag,
    Group,
    HttpUrl,
    KeyFallback,
    KeyMode,
    Region,
    RequestBytes,
    SlotName,
    Stream,
    UndeliverablePolicy,
)
from penstock.settings.postgres import CAPTURE_SLOT
from penstock.settings.rules import text, whole_number


class RequestTimeouts(NamedTuple):
    """What bounds a request to Kinesis."""

    connect_s: float
    """Until the connection is up."""
    read_s: float
    """From the request's first byte to the answer's last."""


class KinesisSettings(Group):
    """The stream and the size of what is sent to it."""

    region: Region = Field(validation_alias="AWS_REGION")
    stream: Stream = Field(validation_alias="KINESIS_STREAM")
    """A name, or an ARN: of a stream in another account, above all."""
    endpoint_url: HttpUrl | None = Field(default=None, validation_alias="AWS_ENDPOINT_URL_KINESIS")
    """None: botocore finds the region's own endpoint."""
    batch_max_records: Annotated[int, whole_number(1, 500)] = Field(
        default=200, validation_alias="KINESIS_BATCH_MAX_RECORDS"
    )
    batch_max_bytes: RequestBytes = Field(default=900_000, validation_alias="KINESIS_BATCH_MAX_BYTES")
    batch_max_delay_ms: Annotated[int, whole_number(0)] = Field(
        default=10, validation_alias="KINESIS_BATCH_MAX_DELAY_MS"
    )
    max_record_bytes: RequestBytes = Field(default=MIB, validation_alias="KINESIS_MAX_RECORD_BYTES")
    max_requests: Annotated[int, whole_number(1, 100)] = Field(
        default=4, validation_alias="KINESIS_MAX_REQUESTS"
    )
    """PutRecords requests under way at once."""
    marked_stream: Flag = Field(default=False, validation_alias="KINESIS_MARKED_STREAM")
    """Whether records carry positions, and manifests say where whole transactions are."""
    marks_stream: Stream | None = Field(default=None, validation_alias="KINESIS_MARKS_STREAM")
    """Where manifests go; None: to the stream itself."""
    mark_interval_ms: Annotated[int, whole_number(1, 60_000)] = Field(
        default=100, validation_alias="KINESIS_MARK_INTERVAL_MS"
    )
    connect_timeout_s: Duration | None = Field(default=None, validation_alias="KINESIS_CONNECT_TIMEOUT_S")
    """None: a share of LEADER_TIMEOUT_S, as with the next."""
    read_timeout_s: Duration | None = Field(default=None, validation_alias="KINESIS_READ_TIMEOUT_S")

    @model_validator(mode="after")
    def _stream_is_in_the_region(self) -> Self:
        streams = {"KINESIS_STREAM": self.stream, "KINESIS_MARKS_STREAM": self.marks_stream}
        for variable, stream in streams.items():
            arn = None if stream is None else STREAM_ARN.fullmatch(stream)
            if arn is not None and arn[1] != self.region:
                raise ValueError(
                    f"{variable}={stream!r}: is in {arn[1]}, and AWS_REGION is {self.region!r};"
                    " both must name the same region"
                )
        return self

    @property
    def stream_name(self) -> str:
        """The stream's name alone."""
        arn = STREAM_ARN.fullmatch(self.stream)
        return self.stream if arn is None else arn[2]


class RecordSettings(Group):
    """What shapes put into a stream that is their storage; its name stands in their file."""

    max_record_bytes: RequestBytes = Field(default=MIB, validation_alias="KINESIS_MAX_RECORD_BYTES")


class PartitionKeySettings(Group):
    """How a record gets its partition key."""

    mode: KeyMode = Field(default="primary_key", validation_alias="PARTITION_KEY_MODE")
    fallback: KeyFallback = Field(default="lsn", validation_alias="PARTITION_KEY_FALLBACK")
    static_value: Annotated[str, text(longest=256)] | None = Field(
        default=None, validation_alias="PARTITION_KEY_STATIC_VALUE"
    )

    @property
    def matters(self) -> bool:
        """Whether the order of changes depends on their keys; with an LSN for each there is none to keep."""
        return self.mode == "primary_key" or self.fallback != "lsn"

    @model_validator(mode="after")
    def _static_has_a_value(self) -> Self:
        if self.fallback == "static" and self.static_value is None:
            raise ValueError("PARTITION_KEY_STATIC_VALUE is not set: PARTITION_KEY_FALLBACK=static needs it")
        return self


class InflightSettings(Group):
    """How much may be on its way at once."""

    max_messages: Count = Field(default=10_000, validation_alias="INFLIGHT_MAX_MESSAGES")
    max_bytes: Annotated[int, whole_number(64 * 1024)] = Field(
        default=128 * MIB, validation_alias="INFLIGHT_MAX_BYTES"
    )
    """The least leaves room for pointers to quarantined records."""
    ack_window_max: Count = Field(default=1_000_000, validation_alias="ACK_WINDOW_MAX")
    """Entries between the frontier and the newest frame, published ones included."""


class UndeliverableSettings(Group):
    """What happens to a record that Kinesis can't take."""

    policy: UndeliverablePolicy = Field(default="block", validation_alias="UNDELIVERABLE_POLICY")
    quarantine_url: DirectoryUrl | None = Field(default=None, validation_alias="QUARANTINE_URL")

    @model_validator(mode="after")
    def _quarantine_has_a_place(self) -> Self:
        if self.policy == "quarantine" and self.quarantine_url is None:
            raise ValueError(
                "QUARANTINE_URL is not set: UNDELIVERABLE_POLICY=quarantine needs it (file:///absolute/dir"
                " or s3://bucket/prefix)"
            )
        return self


class MarkedStreamSettings(Group):
    """A marked stream that is read; all but the region and the endpoint stands in its URL."""

    region: Region = Field(validation_alias="AWS_REGION")
    endpoint_url: HttpUrl | None = Field(default=None, validation_alias="AWS_ENDPOINT_URL_KINESIS")
    stream: Stream = Field(validation_alias="--from, the stream")
    slot: SlotName = Field(default=CAPTURE_SLOT, validation_alias="--from, slot")
    """Capture's, under which manifests stand."""
    marks: Stream | None = Field(default=None, validation_alias="--from, marks")
    """None: manifests are in the stream itself."""

"""All settings of each service."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from penstock.settings.kinds import Group
from penstock.settings.kinesis import (
    InflightSettings,
    KinesisSettings,
    MarkedStreamSettings,
    PartitionKeySettings,
    RecordSettings,
    RequestTimeouts,
    UndeliverableSettings,
)
from penstock.settings.postgres import ContentSettings, LeaderSettings, ReplicationSettings
from penstock.settings.service import ChangeLogSettings, LogSettings, OpsSettings
from penstock.settings.timings import Timings

MOST_OF_TIMEOUT = 0.95
"""How much of LEADER_TIMEOUT_S a sign of leadership and a request may take together."""


class CaptureSettings(Group):
    """All that `penstock capture` can be told."""

    replication: ReplicationSettings
    content: ContentSettings
    kinesis: KinesisSettings
    partition_key: PartitionKeySettings
    inflight: InflightSettings
    leader: LeaderSettings
    undeliverable: UndeliverableSettings
    ops: OpsSettings
    log: LogSettings

    @model_validator(mode="after")
    def _primary_keys_are_in_the_records(self) -> Self:
        if self.partition_key.mode == "primary_key" and not self.content.include_pk:
            raise ValueError(
                "WAL2JSON_INCLUDE_PK='false': must be true while PARTITION_KEY_MODE is primary_key"
            )
        return self

    @model_validator(mode="after")
    def _a_marked_stream_has_positions(self) -> Self:
        if self.kinesis.marked_stream and not self.content.include_lsn:
            raise ValueError("WAL2JSON_INCLUDE_LSN='false': must be true while KINESIS_MARKED_STREAM is true")
        return self

    @model_validator(mode="after")
    def _requests_end_before_leadership(self) -> Self:
        """A request that left while the line was fresh must be over before another can lead."""
        timings = Timings.of(self.leader.timeout_s)
        longest_s = MOST_OF_TIMEOUT * timings.timeout_s - timings.freshness_s
        if self.request_timeouts.read_s > longest_s:
            raise ValueError(
                f"KINESIS_READ_TIMEOUT_S='{self.request_timeouts.read_s:g}': must be at most {longest_s:g}:"
                f" with the {timings.freshness_s:g} s for which a sign of leadership counts it has to fit"
                f" into {MOST_OF_TIMEOUT:.0%} of LEADER_TIMEOUT_S, {timings.timeout_s:g} s."
                " Fix: raise that too"
            )
        if self.request_timeouts.connect_s > timings.timeout_s:
            raise ValueError(
                f"KINESIS_CONNECT_TIMEOUT_S='{self.request_timeouts.connect_s:g}': must be at most"
                f" LEADER_TIMEOUT_S, {timings.timeout_s:g}"
            )
        return self

    @property
    def request_timeouts(self) -> RequestTimeouts:
        """What bounds a request to Kinesis."""
        timings = Timings.of(self.leader.timeout_s)
        connect_s, read_s = self.kinesis.connect_timeout_s, self.kinesis.read_timeout_s
        return RequestTimeouts(
            timings.connect_s if connect_s is None else connect_s,
            timings.answer_s if read_s is None else read_s,
        )

    @property
    def keys_matter(self) -> bool:
        """Whether the stream must go by partition keys: readers of manifests rely on it, too."""
        return self.partition_key.matters or self.kinesis.marked_stream

    @property
    def may_be_unordered(self) -> bool:
        """Whether the stream could do without partition keys, with other settings for them."""
        return not self.kinesis.marked_stream

    def warnings(self) -> list[str]:
        """A sentence for each value that is legal and doubtful."""
        found = []
        if not self.content.include_lsn:
            found.append(
                "WAL2JSON_INCLUDE_LSN=false: no position in the stream, so readers can't drop repeats"
            )
        if self.kinesis.marks_stream is not None and not self.kinesis.marked_stream:
            found.append(
                f"KINESIS_MARKS_STREAM={self.kinesis.marks_stream} has no use:"
                " KINESIS_MARKED_STREAM isn't true, so there are no manifests"
            )
        if self.inflight.max_bytes < self.kinesis.max_record_bytes:
            found.append(
                f"INFLIGHT_MAX_BYTES={self.inflight.max_bytes} is less than KINESIS_MAX_RECORD_BYTES="
                f"{self.kinesis.max_record_bytes}: records between the two count as undeliverable"
            )
        if self.inflight.ack_window_max < self.inflight.max_messages:
            found.append(
                f"ACK_WINDOW_MAX={self.inflight.ack_window_max} is less than INFLIGHT_MAX_MESSAGES="
                f"{self.inflight.max_messages}: reading pauses before the queue is full"
            )
        return found


class SlotSettings(Group):
    """What is needed to find a service and its slot."""

    replication: ReplicationSettings
    leader: LeaderSettings
    ops: OpsSettings


class ShapesSettings(Group):
    """All that `penstock shapes` and `penstock verify` can be told, beside the shapes file."""

    replication: ReplicationSettings
    leader: LeaderSettings
    change_log: ChangeLogSettings
    records: RecordSettings
    undeliverable: UndeliverableSettings
    ops: OpsSettings
    log: LogSettings


class StreamSourceSettings(Group):
    """Where `--from kinesis://…` reads changes."""

    marked: MarkedStreamSettings

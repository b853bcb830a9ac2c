"""Every setting: its variable, its default and its rule.

A setting is a field, its variable is the alias, its type is the rule. Groups follow topics and are frozen.
PG* and the AWS credentials are not here on purpose: libpq and botocore read them from the environment
themselves, and what is no field can't be printed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, DotEnvSettingsSource

from penstock.decoding.wal2json import replication_options
from penstock.errors import PenstockError
from penstock.settings.rules import (
    directory_of,
    directory_url,
    flag,
    host,
    http_url,
    matching,
    one_of,
    seconds,
    text,
    whole_number,
)
from penstock.settings.timings import Timings

MIB = 1024 * 1024
KINESIS_REQUEST_LIMIT_BYTES = 10 * MIB
DOTENV = Path(".env")
SHAPES_SLOT = "penstock_shapes"
MOST_OF_TIMEOUT = 0.95
"""How much of LEADER_TIMEOUT_S a sign of leadership and a request may take together."""

Flag = Annotated[bool, flag()]
Count = Annotated[int, whole_number(1)]
RequestBytes = Annotated[int, whole_number(1, KINESIS_REQUEST_LIMIT_BYTES)]
LockKey = Annotated[int, whole_number(-(2**63), 2**63 - 1)]
Duration = Annotated[float, seconds(0, above_low=True)]
Text = Annotated[str, text()]
Host = Annotated[str, host()]
HttpUrl = Annotated[str, http_url()]
DirectoryUrl = Annotated[str, directory_url()]
SlotName = Annotated[str, matching(r"[a-z0-9_]{1,63}", "must be a slot name: 1 to 63 of a-z, 0-9 and _")]
Region = Annotated[str, matching(r"[a-z0-9][a-z0-9-]{0,62}", "must be an AWS region, such as eu-west-1")]
STREAM_ARN = re.compile(r"arn:aws[a-z-]*:kinesis:([a-z0-9-]+):[0-9]{12}:stream/([a-zA-Z0-9_.-]{1,128})")
Stream = Annotated[
    str,
    matching(
        rf"[a-zA-Z0-9_.-]{{1,128}}|{STREAM_ARN.pattern}",
        "must be a stream name (1 to 128 of a-z, A-Z, 0-9, _, . and -) or a stream's ARN",
    ),
]
OutputPlugin = Annotated[Literal["wal2json"], one_of("wal2json", why=", the only supported plugin")]
KeyMode = Annotated[Literal["primary_key", "fallback"], one_of("primary_key", "fallback")]
KeyFallback = Annotated[Literal["lsn", "table", "static"], one_of("lsn", "table", "static")]
KeyDerivation = Annotated[Literal["slot_hash64"], one_of("slot_hash64")]
UndeliverablePolicy = Annotated[Literal["block", "quarantine"], one_of("block", "quarantine")]
LogFormat = Annotated[Literal["json", "console"], one_of("json", "console")]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"], one_of("debug", "info", "warning", "error")
]

_LONGEST_SHOWN = 100
_WHAT_TO_SET = {
    "AWS_REGION": "name the AWS region of the stream, such as eu-west-1",
    "KINESIS_STREAM": "name the Kinesis stream to write to",
}


class SettingsError(PenstockError):
    """One or more bad variables, a readable line each."""

    @property
    def lines(self) -> list[str]:
        """The lines, in the order of the settings table."""
        return str(self).split("\n")


class _Group(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class ReplicationSettings(_Group):
    """The slot and the way to it. The server itself is named by libpq's own variables."""

    slot: SlotName = Field(default="etl_slot_wal2json", validation_alias="REPLICATION_SLOT")
    output_plugin: OutputPlugin = Field(default="wal2json", validation_alias="OUTPUT_PLUGIN")
    connect_timeout_s: Duration = Field(default=5.0, validation_alias="CONNECT_TIMEOUT_S")
    note: Flag = Field(default=True, validation_alias="SLOT_NOTE")
    """Whether capture keeps a note of what it confirmed in the database. Shapes have a registry instead."""


class Wal2jsonSettings(_Group):
    """What wal2json puts into a record."""

    format_version: Annotated[int, whole_number(2, 2)] = Field(
        default=2, validation_alias="WAL2JSON_FORMAT_VERSION"
    )
    include_timestamp: Flag = Field(default=True, validation_alias="WAL2JSON_INCLUDE_TIMESTAMP")
    include_lsn: Flag = Field(default=True, validation_alias="WAL2JSON_INCLUDE_LSN")
    include_pk: Flag = Field(default=True, validation_alias="WAL2JSON_INCLUDE_PK")
    include_transactions: Flag = Field(default=False, validation_alias="WAL2JSON_INCLUDE_TRANSACTIONS")
    """Whether begin and commit records are published; the server sends them in any case."""
    numeric_as_string: Flag = Field(default=False, validation_alias="WAL2JSON_NUMERIC_AS_STRING")
    add_tables: Text | None = Field(default=None, validation_alias="WAL2JSON_ADD_TABLES")
    filter_tables: Text | None = Field(default=None, validation_alias="WAL2JSON_FILTER_TABLES")

    def plugin_options(self) -> dict[str, str]:
        """The options with which the plugin is started."""
        return replication_options(
            include_timestamp=self.include_timestamp,
            include_lsn=self.include_lsn,
            include_pk=self.include_pk,
            include_xids=self.include_transactions,
            numeric_as_string=self.numeric_as_string,
            add_tables=self.add_tables,
            filter_tables=self.filter_tables,
        )


class RequestTimeouts(NamedTuple):
    """What bounds a request to Kinesis."""

    connect_s: float
    """Until the connection is up."""
    read_s: float
    """From the request's first byte to the answer's last."""


class KinesisSettings(_Group):
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
    connect_timeout_s: Duration | None = Field(default=None, validation_alias="KINESIS_CONNECT_TIMEOUT_S")
    """None: a share of LEADER_TIMEOUT_S, as with the next."""
    read_timeout_s: Duration | None = Field(default=None, validation_alias="KINESIS_READ_TIMEOUT_S")

    @model_validator(mode="after")
    def _stream_is_in_the_region(self) -> Self:
        arn = STREAM_ARN.fullmatch(self.stream)
        if arn is not None and arn[1] != self.region:
            raise ValueError(
                f"KINESIS_STREAM={self.stream!r}: is in {arn[1]}, and AWS_REGION is {self.region!r};"
                " both must name the same region"
            )
        return self

    @property
    def stream_name(self) -> str:
        """The stream's name alone."""
        arn = STREAM_ARN.fullmatch(self.stream)
        return self.stream if arn is None else arn[2]


class PartitionKeySettings(_Group):
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


class InflightSettings(_Group):
    """How much may be on its way at once."""

    max_messages: Count = Field(default=10_000, validation_alias="INFLIGHT_MAX_MESSAGES")
    max_bytes: Annotated[int, whole_number(64 * 1024)] = Field(
        default=128 * MIB, validation_alias="INFLIGHT_MAX_BYTES"
    )
    """The least leaves room for pointers to quarantined records."""
    ack_window_max: Count = Field(default=1_000_000, validation_alias="ACK_WINDOW_MAX")
    """Entries between the frontier and the newest frame, published ones included."""


class LeaderSettings(_Group):
    """Who leads, how soon another takes over, and when a leader lets go."""

    lock_key_derivation: KeyDerivation = Field(
        default="slot_hash64", validation_alias="LEADER_LOCK_KEY_DERIVATION"
    )
    lock_key_override: LockKey | None = Field(default=None, validation_alias="LEADER_LOCK_KEY_OVERRIDE")
    timeout_s: Annotated[float, seconds(1, 3600)] = Field(default=10.0, validation_alias="LEADER_TIMEOUT_S")
    standby_retry_interval_s: Duration = Field(default=5.0, validation_alias="STANDBY_RETRY_INTERVAL_S")
    shutdown_drain_s: Annotated[float, seconds(0)] = Field(default=10.0, validation_alias="SHUTDOWN_DRAIN_S")
    sink_outage_disconnect_s: Duration = Field(default=30.0, validation_alias="SINK_OUTAGE_DISCONNECT_S")


class UndeliverableSettings(_Group):
    """What happens to a record that Kinesis can't take."""

    policy: UndeliverablePolicy = Field(default="block", validation_alias="UNDELIVERABLE_POLICY")
    quarantine_url: DirectoryUrl | None = Field(default=None, validation_alias="QUARANTINE_URL")

    @model_validator(mode="after")
    def _quarantine_has_a_place(self) -> Self:
        if self.policy == "quarantine" and self.quarantine_url is None:
            raise ValueError(
                "QUARANTINE_URL is not set: UNDELIVERABLE_POLICY=quarantine needs it (file:///absolute/dir)"
            )
        return self

    @property
    def quarantine_dir(self) -> Path | None:
        """The directory of QUARANTINE_URL."""
        return None if self.quarantine_url is None else directory_of(self.quarantine_url)


class ChangeLogSettings(_Group):
    """The log on disk in which changes wait for their shapes, and the pace of the shapes."""

    directory: Text | None = Field(default=None, validation_alias="LOG_DIR")
    """None: the storage's own."""
    max_bytes: Annotated[int, whole_number(MIB)] = Field(
        default=10 * 1024 * MIB, validation_alias="LOG_MAX_BYTES"
    )
    min_free_bytes: Annotated[int, whole_number(0)] = Field(
        default=256 * MIB, validation_alias="LOG_MIN_FREE_BYTES"
    )
    max_flushes: Count = Field(default=4, validation_alias="FLUSH_MAX_PARALLEL")
    stall_s: Duration = Field(default=60.0, validation_alias="STALL_S")
    """A shape that makes no progress for so long is reported."""

    def directory_for(self, storage: str, slot: str) -> Path:
        """Where the log's runs are. In LOG_DIR each slot has its own place: runs of others look abandoned.

        SettingsError if LOG_DIR is unset and the storage is no directory.
        """
        if self.directory is not None:
            return Path(self.directory) / slot
        if "://" in storage:
            raise SettingsError(
                f"LOG_DIR is unset: the storage is {storage}, and the log needs a directory. Fix: set it to"
                " one on a local disk, or on a mount that Spark's executors share"
            )
        return Path(storage) / "_penstock" / "log"


class OpsSettings(_Group):
    """Where health, metrics and the console listen."""

    host: Host = Field(default="127.0.0.1", validation_alias="OPS_HOST")
    port: Annotated[int, whole_number(0, 65535)] = Field(default=8088, validation_alias="OPS_PORT")
    """0: any free one."""


class LogSettings(_Group):
    """How logs look."""

    format: LogFormat = Field(default="json", validation_alias="PENSTOCK_LOG_FORMAT")
    level: LogLevel = Field(default="info", validation_alias="PENSTOCK_LOG_LEVEL")


class CaptureSettings(_Group):
    """All that `penstock capture` can be told."""

    replication: ReplicationSettings
    wal2json: Wal2jsonSettings
    kinesis: KinesisSettings
    partition_key: PartitionKeySettings
    inflight: InflightSettings
    leader: LeaderSettings
    undeliverable: UndeliverableSettings
    ops: OpsSettings
    log: LogSettings

    @model_validator(mode="after")
    def _primary_keys_are_in_the_records(self) -> Self:
        if self.partition_key.mode == "primary_key" and not self.wal2json.include_pk:
            raise ValueError(
                "WAL2JSON_INCLUDE_PK='false': must be true while PARTITION_KEY_MODE is primary_key"
            )
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

    def warnings(self) -> list[str]:
        """A sentence for each value that is legal and doubtful."""
        found = []
        if not self.wal2json.include_lsn:
            found.append(
                "WAL2JSON_INCLUDE_LSN=false: no position in the stream, so readers can't drop repeats"
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


class ShapesSettings(_Group):
    """All that `penstock shapes` and `penstock verify` can be told, beside the shapes file."""

    replication: ReplicationSettings
    leader: LeaderSettings
    change_log: ChangeLogSettings
    ops: OpsSettings
    log: LogSettings


_Root = TypeVar("_Root", bound=_Group)


def load_capture_settings(
    environ: Mapping[str, str] | None = None, dotenv: Path | None = DOTENV
) -> CaptureSettings:
    """Read the settings of `penstock capture`; SettingsError names every bad variable at once.

    `.env` applies where the environment says nothing. Without `environ`, the process's own is
    read, and what only `.env` has is exported to it: libpq and botocore look for PG* and AWS_* there.
    """
    return _load(CaptureSettings, _variables(environ, dotenv))


def load_shapes_settings(
    environ: Mapping[str, str] | None = None, dotenv: Path | None = DOTENV
) -> ShapesSettings:
    """Read the settings of `penstock shapes`: a slot of its own, and no Kinesis stream."""
    variables = {"REPLICATION_SLOT": SHAPES_SLOT} | _variables(environ, dotenv)
    return _load(ShapesSettings, variables)


def _variables(environ: Mapping[str, str] | None, dotenv: Path | None) -> dict[str, str]:
    """Every variable that has a value: an empty one counts as unset."""
    from_file = _read_dotenv(dotenv)
    own = os.environ if environ is None else environ
    if environ is None:
        os.environ.update({name: value for name, value in from_file.items() if not os.environ.get(name)})
    return from_file | {name: value for name, value in own.items() if value}


def _read_dotenv(path: Path | None) -> dict[str, str]:
    try:
        source = DotEnvSettingsSource(BaseSettings, env_file=path, case_sensitive=True, env_ignore_empty=True)
    except OSError as error:
        raise SettingsError(f"{path} can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{path} can't be read: it is not UTF-8 text") from None
    found = {name: value for name, value in source.env_vars.items() if value}
    if any("\0" in value for value in found.values()):
        raise SettingsError(f"{path} can't be read: no variable can hold a zero byte")
    return found


def _load(root: type[_Root], variables: Mapping[str, str]) -> _Root:
    groups = {
        name: {alias: variables[alias] for alias in _aliases(field.annotation) if alias in variables}
        for name, field in root.model_fields.items()
    }
    try:
        return root.model_validate(groups)
    except ValidationError as error:
        lines = [_line(details) for details in error.errors()]
    # Outside of the handler: pydantic's own message, with every value in it, must not be in the traceback.
    raise SettingsError("\n".join(lines))


def _aliases(group: Any) -> list[str]:
    return [field.validation_alias for field in group.model_fields.values()]


def _line(error: ErrorDetails) -> str:
    """One readable line. A rule across variables brings its own; a rule of one variable is only the rule."""
    if error["type"] == "missing":
        variable = str(error["loc"][-1])
        return f"{variable} is not set: {_WHAT_TO_SET[variable]}"
    rule = str(error["ctx"]["error"])
    return rule if len(error["loc"]) < 2 else f"{error['loc'][1]}={_shown(error['input'])}: {rule}"


def _shown(value: str) -> str:
    """The value in quotes, on one line, of a sane length, and without what may be a password in a URL."""
    bare = re.sub(r"//.*@", "//***@", value, flags=re.DOTALL)
    return repr(bare if len(bare) <= _LONGEST_SHOWN else bare[:_LONGEST_SHOWN] + "…")

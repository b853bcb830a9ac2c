"""Every variable: its default, good values, and the exact line for a bad one."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from penstock.settings.errors import SettingsError
from penstock.settings.kinesis import KinesisSettings
from penstock.settings.loading import load_capture_settings, load_shapes_settings
from penstock.settings.services import CaptureSettings

TOKEN_FILE = Path(__file__).with_name("ops_token")
ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/changes"
REQUIRED = {"AWS_REGION": "eu-west-1", "KINESIS_STREAM": "changes"}


def load(**variables: str) -> CaptureSettings:
    return load_capture_settings(REQUIRED | variables, dotenv=None)


def refusal(**variables: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load(**variables)
    return str(caught.value)


def value_at(settings: CaptureSettings, path: str) -> object:
    group, name = path.split(".")
    return getattr(getattr(settings, group), name)


DEFAULTS: list[tuple[str, object]] = [
    ("replication.slot", "etl_slot_wal2json"),
    ("replication.output_plugin", "wal2json"),
    ("replication.connect_timeout_s", 5.0),
    ("replication.note", True),
    ("content.format_version", 2),
    ("content.include_timestamp", True),
    ("content.include_lsn", True),
    ("content.include_pk", True),
    ("content.include_transactions", False),
    ("content.numeric_as_string", False),
    ("content.add_tables", None),
    ("content.filter_tables", None),
    ("kinesis.endpoint_url", None),
    ("kinesis.batch_max_records", 200),
    ("kinesis.batch_max_bytes", 900_000),
    ("kinesis.batch_max_delay_ms", 10),
    ("kinesis.max_record_bytes", 1_048_576),
    ("kinesis.max_requests", 4),
    ("kinesis.marked_stream", False),
    ("kinesis.marks_stream", None),
    ("kinesis.mark_interval_ms", 100),
    ("kinesis.connect_timeout_s", None),
    ("kinesis.read_timeout_s", None),
    ("partition_key.mode", "primary_key"),
    ("partition_key.fallback", "lsn"),
    ("partition_key.static_value", None),
    ("inflight.max_messages", 10_000),
    ("inflight.max_bytes", 134_217_728),
    ("inflight.ack_window_max", 1_000_000),
    ("leader.lock_key_derivation", "slot_hash64"),
    ("leader.lock_key_override", None),
    ("leader.timeout_s", 10.0),
    ("leader.standby_retry_interval_s", 5.0),
    ("leader.shutdown_drain_s", 10.0),
    ("leader.sink_outage_disconnect_s", 30.0),
    ("undeliverable.policy", "block"),
    ("undeliverable.quarantine_url", None),
    ("undeliverable.quarantine_dir", None),
    ("ops.host", "127.0.0.1"),
    ("ops.port", 8088),
    ("ops.secret", None),
    ("ops.metrics_open", False),
    ("log.format", "json"),
    ("log.level", "info"),
]


@pytest.mark.parametrize(("path", "expected"), DEFAULTS)
def test_default(path: str, expected: object) -> None:
    assert value_at(load(), path) == expected


GOOD: list[tuple[str, str, str, object]] = [
    ("REPLICATION_SLOT", "orders_2", "replication.slot", "orders_2"),
    ("REPLICATION_SLOT", "s" * 63, "replication.slot", "s" * 63),
    ("OUTPUT_PLUGIN", "wal2json", "replication.output_plugin", "wal2json"),
    ("CONNECT_TIMEOUT_S", "0.5", "replication.connect_timeout_s", 0.5),
    ("SLOT_NOTE", "false", "replication.note", False),
    ("WAL2JSON_FORMAT_VERSION", "2", "content.format_version", 2),
    ("WAL2JSON_INCLUDE_TIMESTAMP", "false", "content.include_timestamp", False),
    ("WAL2JSON_INCLUDE_LSN", "OFF", "content.include_lsn", False),
    ("WAL2JSON_INCLUDE_PK", "yes", "content.include_pk", True),
    ("WAL2JSON_INCLUDE_TRANSACTIONS", "On", "content.include_transactions", True),
    ("WAL2JSON_INCLUDE_TRANSACTIONS", "0", "content.include_transactions", False),
    ("WAL2JSON_NUMERIC_AS_STRING", "1", "content.numeric_as_string", True),
    ("WAL2JSON_ADD_TABLES", "public.*,shop.orders", "content.add_tables", "public.*,shop.orders"),
    ("WAL2JSON_FILTER_TABLES", "*.audit", "content.filter_tables", "*.audit"),
    ("AWS_REGION", "us-gov-west-1", "kinesis.region", "us-gov-west-1"),
    ("KINESIS_STREAM", "Orders_v1.eu-1", "kinesis.stream", "Orders_v1.eu-1"),
    ("AWS_ENDPOINT_URL_KINESIS", "http://127.0.0.1:4566", "kinesis.endpoint_url", "http://127.0.0.1:4566"),
    ("KINESIS_BATCH_MAX_RECORDS", "500", "kinesis.batch_max_records", 500),
    ("KINESIS_BATCH_MAX_BYTES", "10485760", "kinesis.batch_max_bytes", 10_485_760),
    ("KINESIS_BATCH_MAX_DELAY_MS", "0", "kinesis.batch_max_delay_ms", 0),
    ("KINESIS_MAX_RECORD_BYTES", "10485760", "kinesis.max_record_bytes", 10_485_760),
    ("KINESIS_STREAM", ARN, "kinesis.stream", ARN),
    ("KINESIS_MAX_REQUESTS", "16", "kinesis.max_requests", 16),
    ("KINESIS_MARKED_STREAM", "true", "kinesis.marked_stream", True),
    ("KINESIS_MARKS_STREAM", ARN, "kinesis.marks_stream", ARN),
    ("KINESIS_MARK_INTERVAL_MS", "1000", "kinesis.mark_interval_ms", 1000),
    ("KINESIS_CONNECT_TIMEOUT_S", "0.5", "kinesis.connect_timeout_s", 0.5),
    ("KINESIS_READ_TIMEOUT_S", "6.5", "kinesis.read_timeout_s", 6.5),
    ("PARTITION_KEY_MODE", "fallback", "partition_key.mode", "fallback"),
    ("PARTITION_KEY_FALLBACK", "table", "partition_key.fallback", "table"),
    ("PARTITION_KEY_STATIC_VALUE", "ü" * 256, "partition_key.static_value", "ü" * 256),
    ("INFLIGHT_MAX_MESSAGES", "1", "inflight.max_messages", 1),
    ("INFLIGHT_MAX_BYTES", "52428800", "inflight.max_bytes", 52_428_800),
    ("ACK_WINDOW_MAX", "5000", "inflight.ack_window_max", 5000),
    ("LEADER_LOCK_KEY_DERIVATION", "slot_hash64", "leader.lock_key_derivation", "slot_hash64"),
    ("LEADER_LOCK_KEY_OVERRIDE", "-9223372036854775808", "leader.lock_key_override", -(2**63)),
    ("LEADER_LOCK_KEY_OVERRIDE", "9223372036854775807", "leader.lock_key_override", 2**63 - 1),
    ("LEADER_TIMEOUT_S", "1", "leader.timeout_s", 1.0),
    ("LEADER_TIMEOUT_S", "3600", "leader.timeout_s", 3600.0),
    ("STANDBY_RETRY_INTERVAL_S", "0.2", "leader.standby_retry_interval_s", 0.2),
    ("SHUTDOWN_DRAIN_S", "0", "leader.shutdown_drain_s", 0.0),
    ("SINK_OUTAGE_DISCONNECT_S", "2.5", "leader.sink_outage_disconnect_s", 2.5),
    ("UNDELIVERABLE_POLICY", "block", "undeliverable.policy", "block"),
    ("QUARANTINE_URL", "s3://bucket/a/b", "undeliverable.quarantine_url", "s3://bucket/a/b"),
    ("QUARANTINE_URL", "file:///var/q%20x", "undeliverable.quarantine_dir", Path("/var/q x")),
    ("OPS_HOST", "::1", "ops.host", "::1"),
    ("OPS_HOST", "localhost", "ops.host", "localhost"),
    ("OPS_PORT", "0", "ops.port", 0),
    ("OPS_PORT", "65535", "ops.port", 65535),
    ("OPS_TOKEN", "0123456789abcdef", "ops.secret", "0123456789abcdef"),
    ("OPS_TOKEN_FILE", str(TOKEN_FILE), "ops.secret", "a-token-for-tests-only"),
    ("OPS_METRICS_OPEN", "true", "ops.metrics_open", True),
    ("PENSTOCK_LOG_FORMAT", "console", "log.format", "console"),
    ("PENSTOCK_LOG_LEVEL", "debug", "log.level", "debug"),
]


@pytest.mark.parametrize(("variable", "text", "path", "expected"), GOOD)
def test_good_value(variable: str, text: str, path: str, expected: object) -> None:
    assert value_at(load(**{variable: text}), path) == expected


SLOT_RULE = "must be a slot name: 1 to 63 of a-z, 0-9 and _"
STREAM_RULE = "must be a stream name (1 to 128 of a-z, A-Z, 0-9, _, . and -) or a stream's ARN"
FLAG_RULE = "must be true or false (or 1/0, yes/no, on/off)"
ABOVE_ZERO_S = "must be a number of seconds greater than 0"
REQUEST_BYTES = "must be a whole number from 1 to 10485760"
ONE_OR_MORE = "must be a whole number, 1 or more"
BIGINT = "must be a whole number from -9223372036854775808 to 9223372036854775807"
ENDPOINT_RULE = "must be a URL such as http://127.0.0.1:4566, without user name or password"
DIRECTORY_RULE = "must be file:///absolute/dir or s3://bucket/prefix"
TOKEN_RULE = "must be 16 to 512 characters, ASCII and without spaces"
HOST_RULE = "must be a host name or an IP address, without a port"

BAD: list[tuple[str, str, str]] = [
    ("REPLICATION_SLOT", "Orders", SLOT_RULE),
    ("REPLICATION_SLOT", "orders-slot", SLOT_RULE),
    ("REPLICATION_SLOT", "s" * 64, SLOT_RULE),
    ("REPLICATION_SLOT", "a\nb", SLOT_RULE),
    ("OUTPUT_PLUGIN", "pgoutput", "must be wal2json, the only supported plugin"),
    ("CONNECT_TIMEOUT_S", "0", ABOVE_ZERO_S),
    ("CONNECT_TIMEOUT_S", "nan", ABOVE_ZERO_S),
    ("CONNECT_TIMEOUT_S", "5s", ABOVE_ZERO_S),
    ("SLOT_NOTE", "maybe", FLAG_RULE),
    ("WAL2JSON_FORMAT_VERSION", "1", "must be 2"),
    ("WAL2JSON_INCLUDE_TIMESTAMP", "maybe", FLAG_RULE),
    ("WAL2JSON_INCLUDE_LSN", "2", FLAG_RULE),
    ("WAL2JSON_INCLUDE_PK", "t", FLAG_RULE),
    ("WAL2JSON_INCLUDE_TRANSACTIONS", " true", FLAG_RULE),
    ("WAL2JSON_NUMERIC_AS_STRING", "none", FLAG_RULE),
    ("WAL2JSON_ADD_TABLES", "\udcff", "must be UTF-8 text"),
    ("WAL2JSON_FILTER_TABLES", "\udcff", "must be UTF-8 text"),
    ("AWS_REGION", "eu west", "must be an AWS region, such as eu-west-1"),
    ("KINESIS_STREAM", "my stream", STREAM_RULE),
    ("AWS_ENDPOINT_URL_KINESIS", "127.0.0.1:4566", ENDPOINT_RULE),
    ("AWS_ENDPOINT_URL_KINESIS", "http://h:99999", ENDPOINT_RULE),
    ("KINESIS_BATCH_MAX_RECORDS", "501", "must be a whole number from 1 to 500"),
    ("KINESIS_BATCH_MAX_RECORDS", "0", "must be a whole number from 1 to 500"),
    ("KINESIS_BATCH_MAX_RECORDS", "1_0", "must be a whole number from 1 to 500"),
    ("KINESIS_BATCH_MAX_RECORDS", "9" * 31, "must be a whole number from 1 to 500"),
    ("KINESIS_BATCH_MAX_BYTES", "10485761", REQUEST_BYTES),
    ("KINESIS_BATCH_MAX_DELAY_MS", "-1", "must be a whole number, 0 or more"),
    ("KINESIS_BATCH_MAX_DELAY_MS", "1.5", "must be a whole number, 0 or more"),
    ("KINESIS_MAX_RECORD_BYTES", "0", REQUEST_BYTES),
    ("KINESIS_STREAM", "arn:aws:kinesis:eu-west-1:1:stream/s", STREAM_RULE),
    ("KINESIS_MAX_REQUESTS", "0", "must be a whole number from 1 to 100"),
    ("KINESIS_MARKED_STREAM", "perhaps", FLAG_RULE),
    ("KINESIS_MARKS_STREAM", "my stream", STREAM_RULE),
    ("KINESIS_MARK_INTERVAL_MS", "0", "must be a whole number from 1 to 60000"),
    ("KINESIS_CONNECT_TIMEOUT_S", "0", ABOVE_ZERO_S),
    ("KINESIS_READ_TIMEOUT_S", "soon", ABOVE_ZERO_S),
    ("PARTITION_KEY_MODE", "random", "must be primary_key or fallback"),
    ("PARTITION_KEY_FALLBACK", "LSN", "must be lsn, table or static"),
    ("PARTITION_KEY_STATIC_VALUE", "\udcff", "must be 1 to 256 characters of UTF-8 text"),
    ("INFLIGHT_MAX_MESSAGES", "0", ONE_OR_MORE),
    ("INFLIGHT_MAX_BYTES", "128MB", "must be a whole number, 65536 or more"),
    ("ACK_WINDOW_MAX", "0", ONE_OR_MORE),
    ("LEADER_LOCK_KEY_DERIVATION", "md5", "must be slot_hash64"),
    ("LEADER_LOCK_KEY_OVERRIDE", "9223372036854775808", BIGINT),
    ("LEADER_LOCK_KEY_OVERRIDE", "0x10", BIGINT),
    ("LEADER_TIMEOUT_S", "0.9", "must be a number of seconds from 1 to 3600"),
    ("LEADER_TIMEOUT_S", "3601", "must be a number of seconds from 1 to 3600"),
    ("STANDBY_RETRY_INTERVAL_S", "0", ABOVE_ZERO_S),
    ("SHUTDOWN_DRAIN_S", "-0.1", "must be a number of seconds, 0 or more"),
    ("SINK_OUTAGE_DISCONNECT_S", "0", ABOVE_ZERO_S),
    ("SINK_OUTAGE_DISCONNECT_S", "inf", ABOVE_ZERO_S),
    ("UNDELIVERABLE_POLICY", "drop", "must be block or quarantine"),
    ("QUARANTINE_URL", "s3://Bucket/dir", DIRECTORY_RULE),
    ("QUARANTINE_URL", "s3://", DIRECTORY_RULE),
    ("QUARANTINE_URL", "/var/quarantine", DIRECTORY_RULE),
    ("QUARANTINE_URL", "file://host/dir", DIRECTORY_RULE),
    ("QUARANTINE_URL", "file:///", DIRECTORY_RULE),
    ("QUARANTINE_URL", "file:///a%00b", DIRECTORY_RULE),
    ("OPS_HOST", "localhost:8088", HOST_RULE),
    ("OPS_HOST", "http://localhost", HOST_RULE),
    ("OPS_PORT", "65536", "must be a whole number from 0 to 65535"),
    ("OPS_PORT", "-1", "must be a whole number from 0 to 65535"),
    ("OPS_TOKEN_FILE", "/no/such/file", "can't be read: No such file or directory"),
    ("OPS_TOKEN_FILE", "/etc", "can't be read: Is a directory"),
    ("OPS_TOKEN_FILE", __file__, f"the token in it {TOKEN_RULE}"),
    ("OPS_METRICS_OPEN", "perhaps", FLAG_RULE),
    ("PENSTOCK_LOG_FORMAT", "xml", "must be json or console"),
    ("PENSTOCK_LOG_LEVEL", "INFO", "must be debug, info, warning or error"),
]


@pytest.mark.parametrize(("variable", "text", "rule"), BAD)
def test_bad_value_is_one_line_with_variable_value_and_rule(variable: str, text: str, rule: str) -> None:
    assert refusal(**{variable: text}) == f"{variable}={text!r}: {rule}"


@pytest.mark.parametrize(
    "token", ["fifteen-letters", "with a space in it", "ümlauts-are-no-ascii", "x" * 513]
)
def test_a_bad_token_is_not_shown(token: str) -> None:
    assert refusal(OPS_TOKEN=token) == f"OPS_TOKEN=***: {TOKEN_RULE}"


def test_a_token_is_in_no_representation() -> None:
    ops = load(OPS_TOKEN="0123456789abcdef").ops
    assert "0123456789abcdef" not in f"{ops!r} {ops} {ops.model_dump()}"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "penstock.example", "localhost.example"])
def test_others_may_reach_the_ops_port_only_with_a_token(host: str) -> None:
    assert refusal(OPS_HOST=host) == (
        f"OPS_HOST={host!r}: others could read the ops port, and OPS_TOKEN is not set. Fix: set OPS_TOKEN or"
        " OPS_TOKEN_FILE, or leave OPS_HOST at 127.0.0.1"
    )
    assert load(OPS_HOST=host, OPS_TOKEN="0123456789abcdef").ops.host == host
    assert load(OPS_HOST=host, OPS_TOKEN_FILE=str(TOKEN_FILE)).ops.host == host


def test_two_tokens_are_one_too_many() -> None:
    assert refusal(OPS_TOKEN="0123456789abcdef", OPS_TOKEN_FILE=str(TOKEN_FILE)) == (
        "OPS_TOKEN and OPS_TOKEN_FILE are both set: set one of them"
    )


def test_tables_above_cover_every_variable() -> None:
    groups: list[Any] = [field.annotation for field in CaptureSettings.model_fields.values()]
    every = {field.validation_alias for group in groups for field in group.model_fields.values()}
    required = {"kinesis.region", "kinesis.stream"}
    assert {variable for variable, *_ in GOOD} == every
    assert {variable for variable, *_ in BAD} == every - {"OPS_TOKEN"}
    assert {path for path, _ in DEFAULTS} >= {path for _, _, path, _ in GOOD} - required


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        (
            {"WAL2JSON_INCLUDE_PK": "false"},
            "WAL2JSON_INCLUDE_PK='false': must be true while PARTITION_KEY_MODE is primary_key",
        ),
        (
            {"WAL2JSON_INCLUDE_LSN": "false", "KINESIS_MARKED_STREAM": "true"},
            "WAL2JSON_INCLUDE_LSN='false': must be true while KINESIS_MARKED_STREAM is true",
        ),
        (
            {"KINESIS_MARKS_STREAM": ARN, "AWS_REGION": "eu-north-1"},
            f"KINESIS_MARKS_STREAM='{ARN}': is in eu-west-1, and AWS_REGION is 'eu-north-1';"
            " both must name the same region",
        ),
        (
            {"PARTITION_KEY_FALLBACK": "static"},
            "PARTITION_KEY_STATIC_VALUE is not set: PARTITION_KEY_FALLBACK=static needs it",
        ),
        (
            {"KINESIS_STREAM": ARN, "AWS_REGION": "eu-north-1"},
            f"KINESIS_STREAM='{ARN}': is in eu-west-1, and AWS_REGION is 'eu-north-1';"
            " both must name the same region",
        ),
        (
            {"KINESIS_READ_TIMEOUT_S": "7"},
            "KINESIS_READ_TIMEOUT_S='7': must be at most 6.5: with the 3 s for which a sign of leadership"
            " counts it has to fit into 95% of LEADER_TIMEOUT_S, 10 s. Fix: raise that too",
        ),
        (
            {"KINESIS_CONNECT_TIMEOUT_S": "2.5", "LEADER_TIMEOUT_S": "2"},
            "KINESIS_CONNECT_TIMEOUT_S='2.5': must be at most LEADER_TIMEOUT_S, 2",
        ),
        ({"KINESIS_STREAM": "s" * 129}, f"KINESIS_STREAM='{'s' * 100}…': {STREAM_RULE}"),
        (
            {"PARTITION_KEY_STATIC_VALUE": "ü" * 257},
            f"PARTITION_KEY_STATIC_VALUE='{'ü' * 100}…': must be 1 to 256 characters of UTF-8 text",
        ),
        (
            {"UNDELIVERABLE_POLICY": "quarantine"},
            "QUARANTINE_URL is not set: UNDELIVERABLE_POLICY=quarantine needs it (file:///absolute/dir"
            " or s3://bucket/prefix)",
        ),
        ({"AWS_REGION": ""}, "AWS_REGION is not set: name the AWS region of the stream, such as eu-west-1"),
        ({"KINESIS_STREAM": ""}, "KINESIS_STREAM is not set: name the Kinesis stream to write to"),
    ],
)
def test_rules_across_variables_and_required_ones(variables: dict[str, str], line: str) -> None:
    assert refusal(**variables) == line


@pytest.mark.parametrize(
    "variables",
    [
        {"WAL2JSON_INCLUDE_PK": "false", "PARTITION_KEY_MODE": "fallback"},
        {"PARTITION_KEY_FALLBACK": "static", "PARTITION_KEY_STATIC_VALUE": "all"},
        {"UNDELIVERABLE_POLICY": "quarantine", "QUARANTINE_URL": "file:///var/q"},
        {"KINESIS_BATCH_MAX_RECORDS": "", "QUARANTINE_URL": "", "LEADER_LOCK_KEY_OVERRIDE": ""},
    ],
)
def test_allowed_combinations(variables: dict[str, str]) -> None:
    load(**variables)


def test_every_bad_variable_is_named_at_once_in_the_order_of_the_table() -> None:
    with pytest.raises(SettingsError) as caught:
        load_capture_settings({"OPS_PORT": "x", "REPLICATION_SLOT": "X", "KINESIS_STREAM": "s"}, dotenv=None)
    assert [line.split("=")[0].split(" ")[0] for line in caught.value.lines] == [
        "REPLICATION_SLOT",
        "AWS_REGION",
        "OPS_PORT",
    ]


def test_an_error_survives_pickling() -> None:
    error = SettingsError("A='1': must be 2\nB is not set: name it")
    assert pickle.loads(pickle.dumps(error)).lines == ["A='1': must be 2", "B is not set: name it"]


def test_groups_are_frozen_and_refuse_unknown_names() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        load().kinesis.batch_max_records = 1
    with pytest.raises(ValidationError, match="strem"):
        KinesisSettings.model_validate({"region": "eu-west-1", "strem": "changes"})


def test_a_group_can_be_made_by_field_names() -> None:
    assert KinesisSettings(region="eu-west-1", stream="changes") == load().kinesis


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        (
            {"KINESIS_MARKS_STREAM": "marks"},
            "KINESIS_MARKS_STREAM=marks has no use:"
            " KINESIS_MARKED_STREAM isn't true, so there are no manifests",
        ),
        (
            {"WAL2JSON_INCLUDE_LSN": "false"},
            "WAL2JSON_INCLUDE_LSN=false: no position in the stream, so readers can't drop repeats",
        ),
        (
            {"INFLIGHT_MAX_BYTES": "100000"},
            "INFLIGHT_MAX_BYTES=100000 is less than KINESIS_MAX_RECORD_BYTES=1048576: "
            "records between the two count as undeliverable",
        ),
        (
            {"ACK_WINDOW_MAX": "100"},
            "ACK_WINDOW_MAX=100 is less than INFLIGHT_MAX_MESSAGES=10000: "
            "reading pauses before the queue is full",
        ),
    ],
)
def test_doubtful_values_give_a_warning(variables: dict[str, str], sentence: str) -> None:
    assert load(**variables).warnings() == [sentence]


def test_defaults_give_no_warning() -> None:
    assert load().warnings() == []


def test_replication_alone_needs_no_aws_and_has_its_own_default_slot() -> None:
    assert load_shapes_settings({}, dotenv=None).replication.slot == "penstock_shapes"
    assert load_shapes_settings({"REPLICATION_SLOT": ""}, None).replication.slot == "penstock_shapes"
    assert load_shapes_settings({"REPLICATION_SLOT": "mine"}, None).replication.slot == "mine"
    with pytest.raises(
        SettingsError, match=r"^CONNECT_TIMEOUT_S='0': must be a number of seconds greater than 0$"
    ):
        load_shapes_settings({"CONNECT_TIMEOUT_S": "0"}, dotenv=None)


@pytest.fixture
def dotenv(tmp_path: Path) -> Path:
    path = tmp_path / ".env"
    path.write_text(
        "KINESIS_STREAM=from_file\nAWS_REGION='eu-west-1'\n# note\nOPS_PORT=\nPGPASSWORD=hunter2\n"
    )
    return path


def test_dotenv_applies_where_the_environment_says_nothing(dotenv: Path) -> None:
    assert load_capture_settings({}, dotenv).kinesis.stream == "from_file"
    assert load_capture_settings({"KINESIS_STREAM": ""}, dotenv).kinesis.stream == "from_file"
    assert load_capture_settings({"KINESIS_STREAM": "own"}, dotenv).kinesis.stream == "own"
    assert load_capture_settings({}, dotenv).ops.port == 8088


@pytest.fixture
def own_environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The process's environment, replaced so that what the loader exports ends with the test."""
    environment = {"PGHOST": "db1", "PGUSER": ""}
    monkeypatch.setattr(os, "environ", environment)
    return environment


def without_pytest(environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}


def test_dotenv_is_exported_where_the_process_has_nothing(
    own_environment: dict[str, str], dotenv: Path
) -> None:
    dotenv.write_text(dotenv.read_text() + "PGHOST=db2\nPGUSER=app\n")
    load_capture_settings(dotenv=dotenv)
    assert without_pytest(own_environment) == {
        "PGHOST": "db1",
        "PGUSER": "app",
        "PGPASSWORD": "hunter2",
        "KINESIS_STREAM": "from_file",
        "AWS_REGION": "eu-west-1",
    }


def test_dotenv_is_not_exported_when_an_environment_is_given(
    own_environment: dict[str, str], dotenv: Path
) -> None:
    load_capture_settings({}, dotenv)
    assert without_pytest(own_environment) == {"PGHOST": "db1", "PGUSER": ""}


def test_a_missing_dotenv_is_no_error(tmp_path: Path) -> None:
    assert load_capture_settings(REQUIRED, tmp_path / ".env") == load()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"KINESIS_STREAM=\xff\n", "it is not UTF-8 text"),
        (b"PGUSER=a\0b\n", "no variable can hold a zero byte"),
    ],
)
def test_an_unreadable_dotenv_is_one_line(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / ".env"
    path.write_bytes(content)
    with pytest.raises(SettingsError) as caught:
        load_capture_settings(REQUIRED, path)
    assert str(caught.value) == f"{path} can't be read: {reason}"


def test_secrets_are_in_no_repr_and_no_error(tmp_path: Path) -> None:
    secrets = {
        "PGPASSWORD": "s3cret-pg",
        "AWS_SECRET_ACCESS_KEY": "s3cret-aws",
        "AWS_SESSION_TOKEN": "s3cret-token",
    }
    path = tmp_path / ".env"
    path.write_text("".join(f"{name}={value}\n" for name, value in secrets.items()))
    assert "s3cret" not in repr(load_capture_settings(REQUIRED | secrets, path))
    with pytest.raises(SettingsError) as caught:
        load_capture_settings(
            secrets
            | {
                "AWS_ENDPOINT_URL_KINESIS": "http://me:s3cret/x@kinesis",
                "QUARANTINE_URL": "s3://key:s3cret@bucket",
            },
            path,
        )
    assert "AWS_ENDPOINT_URL_KINESIS='http://***@kinesis': " in str(caught.value)
    assert "QUARANTINE_URL='s3://***@bucket': " in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_time_outs_of_a_request_follow_from_the_leader_s_unless_they_are_set() -> None:
    assert load().request_timeouts == (1.5, 4.0)
    assert load(KINESIS_CONNECT_TIMEOUT_S="3", KINESIS_READ_TIMEOUT_S="6").request_timeouts == (3.0, 6.0)


def test_a_stream_s_name_is_in_its_arn() -> None:
    assert load(KINESIS_STREAM=ARN).kinesis.stream_name == "changes"
    assert load(KINESIS_STREAM="orders").kinesis.stream_name == "orders"

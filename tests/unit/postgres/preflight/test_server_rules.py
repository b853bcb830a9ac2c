"""Findings that no server at hand can be brought to give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from penstock.errors import SlotInvalid
from penstock.finding import Finding, Level, as_text, worst
from penstock.kinesis.aws.credentials import NO_CREDENTIALS
from penstock.kinesis.aws.outcome import Failed
from penstock.kinesis.stream_check import judge_refusal, judge_stream
from penstock.model.relation import Relation
from penstock.postgres.preflight.server_rules import (
    MUCH_RETAINED_BYTES,
    CheckedServer,
    Retention,
    RoleFacts,
    judge_retention,
    judge_role,
    judge_server,
    judge_slot,
)
from penstock.postgres.preflight.tables import NAMES_SHOWN, CheckedTable, TableRules, judge_tables
from penstock.settings.kinesis import KinesisSettings
from tests.servers.slots import HEALTHY

STREAM = KinesisSettings(region="eu-west-1", stream="orders")
ACTIVE = {"StreamStatus": "ACTIVE", "OpenShardCount": 2, "RetentionPeriodHours": 24}


@pytest.mark.parametrize(("version", "level"), [(130022, Level.FAIL), (140000, Level.OK), (180006, Level.OK)])
def test_server_version(version: int, level: Level) -> None:
    assert judge_server(CheckedServer(version, "x", "shop", "me")).level is level


def test_each_right_to_replicate_is_enough() -> None:
    nobody = RoleFacts("me", superuser=False, replication=False, rds_replication=False)

    assert judge_role(nobody).level is Level.FAIL
    for right in ("superuser", "replication", "rds_replication"):
        allowed: dict[str, Any] = {right: True}
        assert judge_role(nobody._replace(**allowed)).level is Level.OK


@pytest.mark.parametrize(
    ("changed", "level"),
    [
        pytest.param({}, Level.OK, id="read"),
        pytest.param({"active_pid": None}, Level.OK, id="not read, little retained"),
        pytest.param({"retained_bytes": 2 * MUCH_RETAINED_BYTES}, Level.OK, id="read, much retained"),
        pytest.param(
            {"active_pid": None, "retained_bytes": 2 * MUCH_RETAINED_BYTES}, Level.WARN, id="nobody reads it"
        ),
        pytest.param({"wal_status": "unreserved"}, Level.WARN, id="about to be lost"),
        pytest.param({"wal_status": "lost"}, Level.FAIL, id="lost"),
    ],
)
def test_slot(changed: Mapping[str, Any], level: Level) -> None:
    assert judge_slot("s", HEALTHY._replace(**changed), "wal2json").level is level


def test_a_timeout_for_idle_slots_is_a_warning_of_its_own() -> None:
    assert len(judge_retention(Retention(keep_mb=-1, idle_timeout="0"))) == 1

    _, finding = judge_retention(Retention(keep_mb=-1, idle_timeout="1d"))

    assert (finding.level, "idle_replication_slot_timeout is 1d" in finding.found) == (Level.WARN, True)


@pytest.mark.parametrize(
    ("changed", "level"),
    [
        ({}, Level.OK),
        ({"StreamStatus": "UPDATING"}, Level.OK),
        ({"StreamStatus": "CREATING"}, Level.FAIL),
        ({"StreamStatus": "DELETING"}, Level.FAIL),
        ({"MaxRecordSizeInKiB": 1024}, Level.OK),
        ({"MaxRecordSizeInKiB": 1023}, Level.WARN),
    ],
)
def test_stream(changed: Mapping[str, object], level: Level) -> None:
    assert judge_stream(STREAM, {**ACTIVE, **changed}).level is level


@pytest.mark.parametrize(
    ("failed", "level", "found"),
    [
        (Failed("AccessDeniedException", "no", stream_fault=True), Level.WARN, "can't be described"),
        (Failed("ResourceNotFoundException", "no", stream_fault=True), Level.FAIL, "does not exist"),
        (
            Failed("UnrecognizedClientException", "no", stream_fault=True),
            Level.FAIL,
            "UnrecognizedClientException: no",
        ),
        (NO_CREDENTIALS, Level.FAIL, "no AWS credentials were found"),
        (
            Failed("CredentialsRefresh", "FileNotFoundError: /t", stream_fault=True),
            Level.FAIL,
            "no AWS credentials can be had: FileNotFoundError: /t",
        ),
        (
            Failed("TimeoutError", "late", stream_fault=False),
            Level.FAIL,
            "can't be asked: TimeoutError: late",
        ),
    ],
)
def test_a_refusal_to_describe_the_stream(failed: Failed, level: Level, found: str) -> None:
    finding = judge_refusal(STREAM, failed)

    assert finding.level is level
    assert found in finding.found


@pytest.mark.parametrize("is_marked", [False, True])
def test_the_rights_that_nobody_can_check_are_named(is_marked: bool) -> None:
    settings = STREAM.model_copy(update={"marked_stream": is_marked})
    refused = judge_refusal(settings, Failed("AccessDeniedException", "no", stream_fault=True))
    for words in (refused.fix, judge_stream(settings, ACTIVE).fix):
        assert "kinesis:PutRecords" in words
        assert ("kinesis:PutRecord on the stream of the manifests" in words) is is_marked


def test_many_tables_are_counted_not_listed() -> None:
    rules = TableRules(None, None, by_primary_key=False, fallback="lsn", numeric_as_string=True)
    tables = [
        CheckedTable(
            Relation("public", f"t{number:02}"),
            partitioned=False,
            partition=False,
            has_identity=False,
            has_key=False,
            has_floats=False,
        )
        for number in range(NAMES_SHOWN + 3)
    ]

    (finding,) = judge_tables(tables, rules, upgrade_to=None)

    assert finding.found.endswith(f"public.t{NAMES_SHOWN - 1} and 3 more")


def test_an_error_of_capture_gives_finding_and_fix() -> None:
    finding = Finding.from_error("slot", SlotInvalid("the slot is lost. Fix: make a new one"))

    assert finding == (Level.FAIL, "slot", "the slot is lost", "make a new one")


def test_text_has_a_line_a_finding_and_is_coloured_only_on_request() -> None:
    findings = [
        Finding.ok("a", "fine", "advice"),
        Finding.warn("long", "doubtful"),
        Finding.fail("b", "broken", "mend it"),
    ]

    assert as_text(findings).splitlines() == [
        "ok    a     fine. Note: advice",
        "warn  long  doubtful",
        "fail  b     broken. Fix: mend it",
        "",
        "3 findings: 1 ok, 1 warn, 1 fail",
    ]
    assert as_text(findings, colour=True).count("\033[0m") == 3
    assert (worst(findings), worst(findings[:2]), worst([])) == (Level.FAIL, Level.WARN, Level.OK)

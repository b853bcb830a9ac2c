"""Every reason why a slot can't be used: its own error with the fix, a process that stays up, and recovery.

The captures are started together and mended together, because each of them looks again only every 30 s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import psycopg
import pytest

from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from penstock.retry_policy import SLOW_RETRY_S
from tests.servers.capture_process import CaptureProcess
from tests.servers.capture_site import CaptureSite, metric, readiness, wait_for_phase

STREAM = "refusals"
MAKE = "SELECT pg_create_logical_replication_slot('{}', '{}')"
MAKE_PHYSICAL = "SELECT pg_create_physical_replication_slot('{}')"
DROP = "SELECT pg_drop_replication_slot('{}')"
AS_STRING = "'numeric-data-types-as-string', '1'"

Step = Callable[[PrivatePostgres, str], object]


class Refusal(NamedTuple):
    """A way to make a slot unusable, what must be said of it, and how an operator mends it."""

    error: str
    says: list[str]
    spoil: Step
    mend: Step | None
    variables: dict[str, str] = {}


def make(plugin: str, database: str = "postgres") -> Step:
    return lambda server, slot: server.psql(MAKE.format(slot, plugin), database)


def make_physical(server: PrivatePostgres, slot: str) -> None:
    server.psql(MAKE_PHYSICAL.format(slot))


def drop(server: PrivatePostgres, slot: str) -> None:
    server.psql(DROP.format(slot))


def lose(server: PrivatePostgres, slot: str) -> None:
    """Write more WAL than the server keeps for its slots."""
    server.psql(MAKE.format(slot, "wal2json"))
    server.set("max_slot_wal_keep_size", "1MB")
    for _ in range(3):
        server.psql("SELECT pg_logical_emit_message(false, '', ''); SELECT pg_switch_wal()")
    server.psql("CHECKPOINT")
    server.set("max_slot_wal_keep_size", "-1")


def use_up(server: PrivatePostgres, slot: str) -> None:
    for number in range(100):
        try:
            server.psql(MAKE_PHYSICAL.format(f"{slot}_{number}"))
        except psycopg.errors.ConfigurationLimitExceeded:
            return
    raise AssertionError("there is always one more slot")


def free_one(server: PrivatePostgres, slot: str) -> None:
    drop(server, f"{slot}_0")


def make_role(server: PrivatePostgres, slot: str) -> None:
    server.psql(f"CREATE ROLE {slot} LOGIN; {MAKE.format(slot, 'wal2json')}")


def let_role_replicate(server: PrivatePostgres, slot: str) -> None:
    server.psql(f"ALTER ROLE {slot} REPLICATION")


def raise_wal_level(server: PrivatePostgres, slot: str) -> None:
    server.set("wal_level", "logical")
    server.restart()


def allow_plugin(server: PrivatePostgres, slot: str) -> None:
    server.set("output_plugin_libraries", "pgoutput, test_decoding, wal2json")


def nothing(server: PrivatePostgres, slot: str) -> None:
    """The server itself is spoilt."""


# In this order: once slots are used up, no more can be made.
REFUSALS = {
    "lost": Refusal("SlotInvalid", ["is lost", "Fix: create a slot under a new name"], lose, drop),
    "other_plugin": Refusal(
        "SlotMismatch",
        ["plugin 'test_decoding', not 'wal2json'", "Fix: choose another REPLICATION_SLOT"],
        make("test_decoding"),
        drop,
    ),
    "physical": Refusal(
        "SlotMismatch", ["is a physical slot", "Fix: choose another REPLICATION_SLOT"], make_physical, drop
    ),
    "other_database": Refusal(
        "SlotMismatch",
        ["belongs to database 'template1'", "Fix: connect to 'template1'"],
        make("wal2json", "template1"),
        drop,
    ),
    "role": Refusal(
        "RoleLacksReplication",
        ["may not replicate", "Fix: ALTER ROLE <role> REPLICATION", "GRANT rds_replication"],
        make_role,
        let_role_replicate,
        {"PGUSER": "role"},
    ),
    "option": Refusal(
        "PluginOptionRefused",
        ["refuses an option", "Fix: ", "take schema.table"],
        make("wal2json"),
        None,
        {"WAL2JSON_ADD_TABLES": "no_dot"},
    ),
    "used_up": Refusal(
        "NoSpareSlot",
        ["all replication slots are in use", "Fix: raise max_replication_slots"],
        use_up,
        free_one,
    ),
    "wal_level": Refusal(
        "WalLevelTooLow",
        ["wal_level is 'replica'", "Fix: ALTER SYSTEM SET wal_level = 'logical'", "restart"],
        nothing,
        raise_wal_level,
    ),
    "forbidden": Refusal(
        "PluginForbidden",
        ["forbids the output plugin wal2json", "Fix: ALTER SYSTEM SET output_plugin_libraries", "reload"],
        nothing,
        allow_plugin,
    ),
}
MENDABLE = [name for name, refusal in REFUSALS.items() if refusal.mend is not None]


class Refused(NamedTuple):
    """A capture that can't use its slot."""

    refusal: Refusal
    server: PrivatePostgres
    capture: CaptureProcess


@pytest.fixture(scope="module")
def refused(kinesis: LocalKinesis) -> Iterator[dict[str, Refused]]:
    """A capture for each refusal; "forbidden" is not among them if the server can't forbid plugins."""
    kinesis.create_stream(STREAM)
    with ExitStack() as stack:
        crowded = stack.enter_context(PrivatePostgres(settings={"wal_keep_size": "0"}))
        servers = {"wal_level": stack.enter_context(PrivatePostgres(settings={"wal_level": "replica"}))}
        if crowded.knows_plugin_setting:
            servers["forbidden"] = stack.enter_context(PrivatePostgres(allow_wal2json=False))
        captures = {}
        for name, refusal in REFUSALS.items():
            if name == "forbidden" and name not in servers:
                continue
            server = servers.get(name, crowded)
            refusal.spoil(server, name)
            site = CaptureSite(server, "postgres", kinesis, STREAM)
            capture = site.capture(REPLICATION_SLOT=name, **refusal.variables)
            captures[name] = Refused(refusal, server, stack.enter_context(capture))
        yield captures
    kinesis.delete_stream(STREAM)


@pytest.fixture(scope="module")
def mended(refused: dict[str, Refused]) -> dict[str, Refused]:
    """The same captures after an operator has mended what can be mended."""
    for name, (refusal, server, capture) in refused.items():
        capture.wait_for_log(refusal.error)
        if refusal.mend is not None:
            refusal.mend(server, name)
    return refused


@pytest.fixture
def case(refused: dict[str, Refused], name: str) -> Refused:
    """One of them."""
    if name not in refused:
        pytest.skip("this server version can't forbid plugins")
    return refused[name]


def said(capture: CaptureProcess, error: str) -> dict[str, Any]:
    event = capture.wait_for_log(error)
    assert event["level"] == "error"
    assert "\n" not in event["detail"]
    return event


@pytest.mark.parametrize("name", REFUSALS)
def test_says_what_to_do_and_stays_up(case: Refused) -> None:
    sentence = said(case.capture, case.refusal.error)["detail"]
    for words in case.refusal.says:
        assert words in sentence
    waiting = wait_for_phase(case.capture, "waiting")
    assert waiting["status"] == 503
    assert f"postgres: {sentence}" in waiting["reasons"]
    assert case.capture.get("/livez").status == 200
    assert metric(case.capture, "penstock_leaderships_total") == 0
    assert_quiet(case.capture)


def test_only_a_server_that_knows_the_setting_forbids_plugins(refused: dict[str, Refused]) -> None:
    server = refused["lost"].server
    known = server.psql("SELECT 1 FROM pg_settings WHERE name = 'output_plugin_libraries'")
    assert bool(known) == server.knows_plugin_setting == ("forbidden" in refused)


def test_an_option_that_this_wal2json_may_not_know(refused: dict[str, Refused], kinesis: LocalKinesis) -> None:
    server = refused["wal_level"].server
    assert server


@pytest.mark.parametrize("name", MENDABLE)
def test_recovers_by_itself_once_mended(mended: dict[str, Refused], case: Refused, name: str) -> None:
    case.capture.wait_for_log("streaming", timeout=SLOW_RETRY_S + 10)
    answer = readiness(case.capture)
    assert (answer["status"], answer["reasons"]) == (200, [])
    assert [event["level"] for event in case.capture.events("GAP")] == ["error"] * (name == "lost")
    assert_quiet(case.capture)


def assert_quiet(capture: CaptureProcess) -> None:
    """No traceback and no loop: it says its trouble once, and again only at the next slow try."""
    log = capture.log_text()
    assert "Traceback" not in log
    assert "exception" not in log
    errors = [event for event in capture.events() if event["level"] == "error" and event["event"] != "GAP"]
    assert len(errors) <= 2

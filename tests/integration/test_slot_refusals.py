"""Every reason why a slot can't be used: its own error with the fix, a process that stays up, and recovery.

The captures are started together and mended together, because what no look can see is tried only every 30 s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from types import MappingProxyType
from typing import NamedTuple

import psycopg
import pytest

from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from penstock.service.retry_policy import SLOW_RETRY_S
from tests.servers.capture_process import CaptureProcess
from tests.servers.capture_site import CaptureSite, metric, readiness, wait_for_phase

STREAM = "refusals"
MAKE = "SELECT pg_create_logical_replication_slot('{}', '{}')"
MAKE_PHYSICAL = "SELECT pg_create_physical_replication_slot('{}')"
DROP = "SELECT pg_drop_replication_slot('{}')"
FIRST_TO_FORBID = {14: 24, 15: 19, 16: 15, 17: 11, 18: 6}
"""The minor releases from which on a server can forbid plugins, and does so with wal2json by default."""
WITHIN_S = 5.0

Step = Callable[[PrivatePostgres, str], object]


class Refusal(NamedTuple):
    """A way to make a slot unusable, what must be said of it, and how an operator mends it."""

    error: str
    says: list[str]
    spoil: Step
    mend: Step | None
    variables: Mapping[str, str] = MappingProxyType({})
    within_s: float = WITHIN_S
    """When it is well again, once mended."""


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
    server.psql(f"CREATE ROLE {slot} LOGIN")
    server.psql(MAKE.format(slot, "wal2json"))


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
        within_s=SLOW_RETRY_S + WITHIN_S,
    ),
    "wal_level": Refusal(
        "WalLevelTooLow",
        ["wal_level is 'replica'", "Fix: ALTER SYSTEM SET wal_level = 'logical'", "restart"],
        nothing,
        raise_wal_level,
    ),
}
FORBIDDEN = Refusal(
    "PluginForbidden",
    ["forbids the output plugin wal2json", "Fix: ALTER SYSTEM SET output_plugin_libraries", "reload"],
    nothing,
    allow_plugin,
)
MENDABLE = [name for name, refusal in REFUSALS.items() if refusal.mend is not None]


class Refused(NamedTuple):
    """A capture that can't use its slot."""

    refusal: Refusal
    server: PrivatePostgres
    capture: CaptureProcess


@pytest.fixture(scope="module")
def refused(kinesis: LocalKinesis) -> Iterator[dict[str, Refused]]:
    """A capture for each refusal; "forbidden" is among them only if the server can forbid plugins."""
    kinesis.create_stream(STREAM)
    with ExitStack() as stack:
        crowded = stack.enter_context(PrivatePostgres(settings={"wal_keep_size": "0"}))
        servers = {"wal_level": stack.enter_context(PrivatePostgres(settings={"wal_level": "replica"}))}
        refusals = dict(REFUSALS)
        if crowded.knows_plugin_setting:
            servers["forbidden"] = stack.enter_context(PrivatePostgres(allow_wal2json=False))
            refusals["forbidden"] = FORBIDDEN
        captures = {}
        for name, refusal in refusals.items():
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


@pytest.mark.parametrize("name", REFUSALS)
def test_says_what_to_do_and_stays_up(refused: dict[str, Refused], name: str) -> None:
    assert_refused(refused[name])


@pytest.mark.parametrize("name", MENDABLE)
def test_recovers_by_itself_once_mended(mended: dict[str, Refused], name: str) -> None:
    assert_recovers(mended[name])
    gaps = mended[name].capture.events("GAP")
    assert [gap["level"] for gap in gaps] == ["error"] * (name == "lost")


def test_a_forbidden_plugin_where_the_server_can_forbid_it(refused: dict[str, Refused]) -> None:
    server = refused["lost"].server
    if not server.knows_plugin_setting:
        ((version,),) = server.psql("SELECT current_setting('server_version_num')::int")
        major, minor = divmod(version, 10_000)
        assert minor < FIRST_TO_FORBID.get(major, 0)
        return
    forbidden = refused["forbidden"]
    assert_refused(forbidden)
    allow_plugin(forbidden.server, "forbidden")
    assert_recovers(forbidden)


def assert_refused(case: Refused) -> None:
    refusal, _, capture = case
    event = capture.wait_for_log(refusal.error)
    sentence = event["detail"]
    assert event["level"] == "error"
    assert "\n" not in sentence
    for words in refusal.says:
        assert words in sentence
    waiting = wait_for_phase(capture, "waiting")
    assert waiting["status"] == 503
    assert f"postgres: {sentence}" in waiting["reasons"]
    assert capture.get("/livez").status == 200
    assert metric(capture, "penstock_leaderships_total") == 0
    assert_quiet(capture)


def assert_recovers(case: Refused) -> None:
    case.capture.wait_for_log("streaming", timeout=case.refusal.within_s)
    answer = readiness(case.capture)
    assert (answer["status"], answer["reasons"]) == (200, [])
    assert_quiet(case.capture)


def assert_quiet(capture: CaptureProcess) -> None:
    """No traceback and no loop: it says its trouble once, and again only at the next slow try."""
    log = capture.log_text()
    assert "Traceback" not in log
    assert "exception" not in log
    errors = [event for event in capture.events() if event["level"] == "error" and event["event"] != "GAP"]
    assert len(errors) <= 2
    assert len(capture.events("lock_acquired")) <= 3, "a look takes no lock"

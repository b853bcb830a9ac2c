"""`penstock check` against real servers: each finding once, and what it leaves behind (nothing)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from penstock.check import find
from penstock.finding import Finding, Level, worst
from penstock.local.free_ports import free_port
from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from penstock.model.lsn import format_lsn
from penstock.postgres.preflight import postgres_check as preflight
from penstock.settings.loading import load_capture_settings
from tests.servers.capture_process import CaptureProcess
from tests.servers.capture_site import CaptureSite, wait_until
from tests.servers.fault_proxy import FaultProxy
from tests.servers.faults import ACCESS_DENIED, AmendSummary, Answer
from tests.servers.tcp_proxy import TcpProxy

OK, WARN, FAIL = Level.OK, Level.WARN, Level.FAIL
MAKE_SLOT = "SELECT pg_create_logical_replication_slot('{}', '{}')"
SLOTS = "SELECT slot_name FROM pg_replication_slots"
SECRET = "hunter2"
OURS = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'penstock check'"

Look = Callable[..., Awaitable["Findings"]]


class Findings:
    """Findings, looked up by subject."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.all = list(findings)

    def __getitem__(self, subject: str) -> Finding:
        (finding,) = [finding for finding in self.all if finding.subject == subject]
        return finding

    def failed(self) -> set[str]:
        return {finding.subject for finding in self.all if finding.level is FAIL}


@pytest.fixture
def site(postgres: PrivatePostgres, database: str, kinesis: LocalKinesis, stream: str) -> CaptureSite:
    return CaptureSite(postgres, database, kinesis, stream)


@pytest.fixture
def look(site: CaptureSite, monkeypatch: pytest.MonkeyPatch) -> Look:
    """Check the site, or a server, with some variables replaced; in this process: a new one takes a second.

    The server notices a moment later that sessions, and with them trial slots and walsenders, are gone.
    """

    async def run(server: PrivatePostgres | None = None, **over: object) -> Findings:
        elsewhere = {} if server is None else on(server)
        for name, value in site.env(**elsewhere | over).items():
            monkeypatch.setenv(name, value)
        found = Findings(await find(load_capture_settings(dotenv=None)))
        wait_until(lambda: not (server or site.postgres).psql(OURS), "its sessions are gone")
        return found

    return run


@pytest.fixture(scope="module")
def spoilt() -> Iterator[PrivatePostgres]:
    """A server with two slots and two walsenders, to be spoilt and restarted."""
    settings = {"max_replication_slots": "2", "max_wal_senders": "2", "wal_keep_size": "0"}
    with PrivatePostgres(settings=settings) as server:
        yield server


def on(server: PrivatePostgres) -> dict[str, object]:
    return {"PGPORT": server.port, "PGDATABASE": "postgres", "REPLICATION_SLOT": "spoilt"}


class TestCommand:
    def test_says_that_all_is_well(self, site: CaptureSite) -> None:
        site.psql("CREATE TABLE t (id int PRIMARY KEY)")

        done = run_command(site)

        lines = done.stdout.splitlines()
        assert (done.returncode, done.stderr) == (0, "")
        assert lines[-1] == f"{len(lines) - 2} findings: {len(lines) - 2} ok, 0 warn, 0 fail"
        assert {line.split()[0] for line in lines[:-2]} == {"ok"}
        assert "\033" not in done.stdout

    def test_prints_json_without_secrets_when_both_servers_are_away(self, site: CaptureSite) -> None:
        nobody = {"PGPORT": free_port(), "AWS_ENDPOINT_URL_KINESIS": f"http://127.0.0.1:{free_port()}"}

        done = run_command(site, "--json", **nobody, PGPASSWORD=SECRET, AWS_SECRET_ACCESS_KEY=SECRET)

        findings = json.loads(done.stdout)
        assert (done.returncode, done.stderr) == (1, "")
        assert [(each["subject"], each["level"]) for each in findings] == [
            ("server", "fail"),
            ("stream", "fail"),
        ]
        assert all(set(each) == {"level", "subject", "found", "fix"} and each["fix"] for each in findings)
        assert SECRET not in done.stdout

    def test_refuses_bad_settings(self, site: CaptureSite) -> None:
        done = run_command(site, KINESIS_BATCH_MAX_RECORDS=501)

        assert (done.returncode, done.stdout) == (2, "")
        assert "KINESIS_BATCH_MAX_RECORDS='501'" in done.stderr


def run_command(site: CaptureSite, *args: str, **over: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock", "check", *args],
        env=site.env(**over),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


class TestServer:
    async def test_names_server_and_cluster(self, look: Look, site: CaptureSite) -> None:
        found = await look()

        ((system_id,),) = site.psql("SELECT system_identifier::text FROM pg_control_system()")
        assert found["server"].found.startswith("PostgreSQL ")
        assert f"system id {system_id}, timeline 1" in found["replication"].found
        assert worst(found.all) is OK

    async def test_leaves_no_slot_behind(self, look: Look, site: CaptureSite) -> None:
        before = site.psql(SLOTS)

        await look()

        assert site.psql(SLOTS) == before

    async def test_a_silent_server_is_a_finding(self, look: Look, site: CaptureSite) -> None:
        with TcpProxy("127.0.0.1", site.postgres.port) as proxy:
            proxy.freeze()
            found = await look(PGPORT=proxy.port, CONNECT_TIMEOUT_S=1)

        assert (found["server"].level, found["stream"].level) == (FAIL, OK)

    async def test_a_question_without_an_answer_stops_no_other(
        self, look: Look, site: CaptureSite, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(preflight, "ANSWER_S", 3.0)
        monkeypatch.setattr(preflight, "TRIAL_SLOT_S", 0.3)
        with psycopg.connect(site.conninfo) as other:
            other.execute("LOCK TABLE pg_catalog.pg_settings IN ACCESS EXCLUSIVE MODE")
            found = await look()

        assert found.failed() == {"retention"}
        assert found["replica identity"].level is OK

    async def test_a_role_that_may_not_replicate(self, look: Look, site: CaptureSite) -> None:
        role = f"plain_{site.database}"
        site.psql(f"CREATE ROLE {role} LOGIN")

        found = await look(PGUSER=role)
        site.psql(f"DROP ROLE {role}")

        assert found.failed() == {"role", "replication"}
        assert f"ALTER ROLE {role} REPLICATION" in found["role"].fix
        assert found["plugin"].level is WARN

    async def test_wal_level(self, look: Look, spoilt: PrivatePostgres) -> None:
        spoilt.set("wal_level", "replica")
        spoilt.restart()
        try:
            found = await look(spoilt)
        finally:
            spoilt.set("wal_level", "logical")
            spoilt.restart()

        assert found.failed() == {"wal_level"}
        assert "restart Postgres" in found["wal_level"].fix
        assert found["plugin"].level is WARN

    async def test_walsenders_run_out(self, look: Look, spoilt: PrivatePostgres) -> None:
        levels = []
        with ExitStack() as stack:
            for _ in range(3):
                found = await look(spoilt)
                levels.append((found["walsenders"].level, found["replication"].level))
                if len(levels) < 3:
                    stack.enter_context(psycopg.connect(spoilt.conninfo(replication="database")))

        assert levels == [(OK, OK), (WARN, OK), (FAIL, FAIL)]
        assert "max_wal_senders" in found["replication"].found

    async def test_what_happens_to_an_unread_slot(self, look: Look, spoilt: PrivatePostgres) -> None:
        unlimited = (await look(spoilt))["retention"]
        spoilt.set("max_slot_wal_keep_size", "64MB")
        limited = (await look(spoilt))["retention"]
        spoilt.set("max_slot_wal_keep_size", "-1")

        assert (unlimited.level, limited.level) == (OK, WARN)
        assert "can fill the server's disk" in unlimited.found
        assert "64.0 MB: a slot further behind is lost" in limited.found


class TestPlugin:
    async def test_missing(self, look: Look, site: CaptureSite) -> None:
        site.psql(f"ALTER DATABASE {site.database} SET dynamic_library_path = '/nowhere'")

        found = await look()

        assert found.failed() == {"plugin"}
        assert "install it" in found["plugin"].fix

    async def test_forbidden(self, look: Look, spoilt: PrivatePostgres) -> None:
        """A server that knows no such setting forbids nothing."""
        if spoilt.knows_plugin_setting:
            spoilt.set("output_plugin_libraries", "pgoutput, test_decoding")
            found = await look(spoilt)
            spoilt.set("output_plugin_libraries", "pgoutput, test_decoding, wal2json")
            assert "output_plugin_libraries = " in found["plugin"].fix
        else:
            found = await look(spoilt)
        assert found.failed() == ({"plugin"} if spoilt.knows_plugin_setting else set())

    async def test_an_open_transaction_holds_up_only_the_creation_of_the_slot(
        self, look: Look, site: CaptureSite, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(preflight, "TRIAL_SLOT_S", 0.5)
        site.psql("CREATE TABLE t (id int PRIMARY KEY)")
        site.psql(MAKE_SLOT.format("exists_" + site.database, "wal2json"))
        with psycopg.connect(site.conninfo) as writer:
            writer.execute("INSERT INTO t VALUES (1)")
            began = time.monotonic()
            missing = await look()
            existing = await look(REPLICATION_SLOT="exists_" + site.database)
            took_s = time.monotonic() - began

        assert (missing["plugin"].level, existing["plugin"].level) == (WARN, OK)
        assert "wait for open write transactions (1 now)" in missing["plugin"].found
        assert took_s < 10
        assert site.psql(SLOTS + " WHERE temporary") == []

    async def test_options_that_it_refuses(self, look: Look) -> None:
        found = await look(WAL2JSON_ADD_TABLES="no_dot")

        assert found.failed() == {"options"}
        assert "WAL2JSON_ADD_TABLES" in found["options"].fix


class TestSlot:
    async def test_missing_then_there(self, look: Look, site: CaptureSite) -> None:
        missing = (await look())["slot"]
        site.psql(MAKE_SLOT.format(site.slot, "wal2json"))
        there = (await look())["slot"]

        slot = site.slot_row()
        assert slot is not None
        assert (missing.level, there.level) == (OK, OK)
        assert "created at the first start" in missing.fix
        assert f"confirmed up to {format_lsn(slot.confirmed_lsn)}, retains " in there.found

    async def test_of_another_plugin(self, look: Look, site: CaptureSite) -> None:
        site.psql(MAKE_SLOT.format(site.slot, "test_decoding"))

        found = await look()

        assert found.failed() == {"slot"}
        assert "choose another REPLICATION_SLOT" in found["slot"].fix

    async def test_of_another_database(self, look: Look, site: CaptureSite) -> None:
        site.psql(MAKE_SLOT.format(site.slot, "wal2json"))
        other = site.postgres.create_database()

        found = await look(PGDATABASE=other)
        site.psql(f"DROP DATABASE {other} WITH (FORCE)")

        assert found.failed() == {"slot"}
        assert f"connect to '{site.database}'" in found["slot"].fix

    async def test_lost_and_no_other_can_be_made(self, look: Look, spoilt: PrivatePostgres) -> None:
        spoilt.psql(MAKE_SLOT.format("spoilt", "wal2json"))
        spoilt.psql(MAKE_SLOT.format("another", "wal2json"))
        spoilt.set("max_slot_wal_keep_size", "1MB")
        for _ in range(3):
            spoilt.psql("SELECT pg_logical_emit_message(false, '', ''); SELECT pg_switch_wal()")
        spoilt.psql("CHECKPOINT")

        lost = await look(spoilt)
        full = await look(spoilt, REPLICATION_SLOT="third")
        for slot in ("spoilt", "another"):
            spoilt.psql(f"SELECT pg_drop_replication_slot('{slot}')")
        spoilt.set("max_slot_wal_keep_size", "-1")

        assert (lost.failed(), full.failed()) == ({"slot"}, {"spare slots"})
        assert "new snapshots" in lost["slot"].fix
        assert full["spare slots"].found.startswith("2 of 2 in use")

    async def test_who_leads(self, look: Look, site: CaptureSite) -> None:
        nobody = (await look())["leader"]
        with CaptureProcess(site.env()) as capture:
            capture.wait_for_log("streaming")
            somebody = (await look())["leader"]

        assert (nobody.level, nobody.found) == (OK, "nobody leads")
        assert somebody.level is OK
        assert f"(penstock capture {site.slot} at 127.0.0.1) leads" in somebody.found

    async def test_a_reader_that_is_no_penstock(self, look: Look, site: CaptureSite) -> None:
        site.psql(MAKE_SLOT.format(site.slot, "wal2json"))
        reader = psycopg.connect(
            site.postgres.conninfo(site.database, replication="database", application_name="intruder"),
            autocommit=True,
        )
        reader.execute(f"START_REPLICATION SLOT {site.slot} LOGICAL 0/0".encode())

        found = await look()
        reader.pgconn.finish()

        assert found.failed() == {"leader"}
        assert "(intruder at 127.0.0.1) reads the slot" in found["leader"].found


class TestDestination:
    async def test_a_stream_is_described(self, look: Look) -> None:
        assert "is ACTIVE: 4 shards, PROVISIONED, keeps records 24 h" in (await look())["stream"].found

    async def test_a_missing_stream(self, look: Look) -> None:
        found = await look(KINESIS_STREAM="nowhere")

        assert found.failed() == {"stream"}
        assert "create-stream --stream-name nowhere" in found["stream"].fix

    async def test_a_role_that_may_not_describe(self, look: Look, fault_proxy: FaultProxy) -> None:
        fault_proxy.inject(Answer(ACCESS_DENIED), operation="DescribeStreamSummary")

        found = await look(AWS_ENDPOINT_URL_KINESIS=fault_proxy.url)

        assert found["stream"].level is WARN
        assert "kinesis:PutRecords" in found["stream"].fix

    @pytest.mark.parametrize(("place", "level"), [("there", OK), ("not/yet/there", OK), ("file/below", FAIL)])
    async def test_quarantine(self, look: Look, tmp_path: Path, place: str, level: Level) -> None:
        (tmp_path / "there").mkdir()
        (tmp_path / "file").touch()

        found = await look(UNDELIVERABLE_POLICY="quarantine", QUARANTINE_URL=(tmp_path / place).as_uri())

        assert found["quarantine"].level is level
        assert sorted(os.listdir(tmp_path)) == ["file", "there"]


async def test_the_stream_of_the_manifests_is_looked_at_too(look: Look) -> None:
    found = await look(KINESIS_MARKED_STREAM="true", KINESIS_MARKS_STREAM="no-such-marks")
    assert found.failed() == {"manifests"}
    assert "'no-such-marks' does not exist" in found["manifests"].found


async def test_a_stream_that_ignores_partition_keys(look: Look, fault_proxy: FaultProxy) -> None:
    """Issue 8, point 11."""
    fault_proxy.inject(AmendSummary("RecordDistributionStrategy", "AUTO"), operation="DescribeStreamSummary")

    by_key = (await look(AWS_ENDPOINT_URL_KINESIS=fault_proxy.url))["stream"]
    assert by_key.level is FAIL
    assert "ignores partition keys" in by_key.found
    assert "USER_PARTITION_KEY" in by_key.fix
    assert "PARTITION_KEY_FALLBACK=lsn" in by_key.fix
    unordered = await look(
        AWS_ENDPOINT_URL_KINESIS=fault_proxy.url,
        PARTITION_KEY_MODE="fallback",
        PARTITION_KEY_FALLBACK="lsn",
    )
    assert unordered["stream"].level is OK
    marked = (await look(AWS_ENDPOINT_URL_KINESIS=fault_proxy.url, KINESIS_MARKED_STREAM="true"))["stream"]
    assert marked.level is FAIL
    assert "USER_PARTITION_KEY" in marked.fix
    assert "PARTITION_KEY_FALLBACK" not in marked.fix, "a marked stream needs its keys"


async def test_a_stream_named_by_its_arn(look: Look, site: CaptureSite) -> None:
    arn = f"arn:aws:kinesis:{site.kinesis.region}:123456789012:stream/{site.stream}"

    assert (await look(KINESIS_STREAM=arn))["stream"].level is OK
    gone = (await look(KINESIS_STREAM=f"{arn}-gone"))["stream"]
    assert gone.level is FAIL
    assert f"--stream-name {site.stream}-gone " in gone.fix

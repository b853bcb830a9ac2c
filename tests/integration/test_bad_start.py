"""A capture that starts with something wrong: a clear sentence, no traceback, and an end or a retry."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import penstock
from penstock.local.free_ports import free_port
from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from tests.servers.capture_process import CaptureProcess
from tests.servers.capture_site import CaptureSite, readiness, wait_for_phase
from tests.servers.loop_thread import bind

SOURCE = Path(penstock.__file__).parents[1]
PASSWORD = "correct horse"


@pytest.fixture
def site(postgres: PrivatePostgres, database: str, kinesis: LocalKinesis, stream: str) -> CaptureSite:
    return CaptureSite(postgres, database, kinesis, stream, STANDBY_RETRY_INTERVAL_S=0.5)


@pytest.fixture
def guarded_role(postgres: PrivatePostgres) -> Iterator[str]:
    """A role that the shared server lets in over TCP only with its password."""
    role = f"guarded_{secrets.token_hex(4)}"
    rules = postgres.directory / "data" / "pg_hba.conf"
    before = rules.read_text()
    postgres.psql(f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD '{PASSWORD}'")
    rules.write_text(f"host all,replication {role} 127.0.0.1/32 scram-sha-256\n{before}")
    reload(postgres)
    yield role
    rules.write_text(before)
    reload(postgres)
    postgres.psql(f"DROP ROLE {role}")


def reload(postgres: PrivatePostgres) -> None:
    postgres.set("log_line_prefix", postgres.psql("SHOW log_line_prefix")[0][0])


def run_to_its_end(
    variables: Mapping[str, str], directory: Path, command: str = "capture"
) -> subprocess.CompletedProcess[str]:
    """Output and errors apart, and no `.env` in sight."""
    return subprocess.run(
        [sys.executable, "-m", "penstock", command],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE), **variables},
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


def test_bad_settings_are_all_named_at_once(tmp_path: Path) -> None:
    bad = {
        "KINESIS_STREAM": "no spaces",
        "KINESIS_BATCH_MAX_RECORDS": "501",
        "LEADER_TIMEOUT_S": "soon",
        "PGPASSWORD": PASSWORD,
    }
    ended = run_to_its_end(bad, tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert [line.partition(": must be")[0] for line in ended.stderr.splitlines()] == [
        "AWS_REGION is not set: name the AWS region of the stream, such as eu-west-1",
        "KINESIS_STREAM='no spaces'",
        "KINESIS_BATCH_MAX_RECORDS='501'",
        "LEADER_TIMEOUT_S='soon'",
    ]


def test_a_taken_ops_port_ends_it(site: CaptureSite, tmp_path: Path) -> None:
    with bind() as taken:
        taken.listen()
        port = taken.getsockname()[1]
        ended = run_to_its_end(site.env(OPS_PORT=port), tmp_path)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"OPS_HOST='127.0.0.1', OPS_PORT='{port}': can't listen there")
    assert ended.stdout == ""


def test_an_unreachable_postgres_is_waited_for(site: CaptureSite) -> None:
    port = free_port()
    with site.capture(PGPORT=port) as capture:
        said = capture.wait_for_log("ConnectionFailed")
        assert "can't connect to Postgres" in said["detail"]
        assert str(port) in said["detail"]
        assert_unready(capture, said["detail"])
        assert_calm(capture)


def test_a_wrong_password_is_refused_until_it_is_right(site: CaptureSite, guarded_role: str) -> None:
    with site.capture(PGUSER=guarded_role, PGPASSWORD="wrong") as capture:
        said = capture.wait_for_log("ConnectionFailed")
        assert f'password authentication failed for user "{guarded_role}"' in said["detail"]
        assert_unready(capture, said["detail"])
        site.psql(f"ALTER ROLE {guarded_role} PASSWORD 'wrong'")
        capture.wait_for_log("streaming")
        assert readiness(capture)["status"] == 200
        assert_calm(capture)
        assert "wrong" not in capture.log_text()
    # The slot's note is this role's: it can't be dropped before.
    site.psql(f"DROP OWNED BY {guarded_role}")


def test_a_missing_stream_is_waited_for(site: CaptureSite) -> None:
    name = f"later-{secrets.token_hex(4)}"
    with site.capture(KINESIS_STREAM=name) as capture:
        said = capture.wait_for_log("sink_down")
        assert said["level"] == "error"
        assert "ResourceNotFoundException" in said["detail"]
        down = wait_for_phase(capture, "sink_down")
        assert down["status"] == 503
        assert f"sink: {said['detail']}" in down["reasons"]
        assert site.slot_row() is None
        site.kinesis.create_stream(name)
        capture.wait_for_log("streaming")
        assert readiness(capture)["status"] == 200
        assert_calm(capture)
    site.kinesis.delete_stream(name)


def assert_unready(capture: CaptureProcess, sentence: str) -> None:
    waiting = wait_for_phase(capture, "waiting")
    assert waiting["status"] == 503
    assert f"postgres: {sentence}" in waiting["reasons"]
    assert capture.get("/livez").status == 200


def assert_calm(capture: CaptureProcess) -> None:
    """It lives, and every line of its log is one event, none of them a traceback or the same again."""
    assert capture.running
    events = [json.loads(line) for line in capture.log_text().splitlines()]
    assert all("exception" not in event for event in events)
    details = [event["detail"] for event in events if "detail" in event]
    assert len(details) == len(set(details))


@pytest.mark.parametrize("command", ["capture", "check"])
@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [
        ("AWS_PROFILE", "nobody", "there is no such profile"),
        ("AWS_CA_BUNDLE", "/nonexistent/ca.pem", "No such file or directory"),
        ("HTTP_PROXY", "http://:3128", "must be http://host:port"),
    ],
)
def test_an_aws_configuration_that_is_no_good_ends_it(
    site: CaptureSite, tmp_path: Path, command: str, variable: str, value: str, why: str
) -> None:
    """Issue 8, point 7."""
    ended = run_to_its_end(site.env(**{variable: value}), tmp_path, command)

    assert (ended.returncode, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"{variable}='{value}': ")
    assert why in line

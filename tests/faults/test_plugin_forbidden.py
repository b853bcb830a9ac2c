"""`/readyz` when the server forbids wal2json. Long: a server that can has to be fetched first."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from tests.servers.capture_site import CaptureSite, turns
from tests.servers.newer_postgres import newer_postgres

pytestmark = pytest.mark.long

ALLOWED = "pgoutput, test_decoding, wal2json"


@pytest.fixture
def server() -> Iterator[PrivatePostgres]:
    with PrivatePostgres(programs=newer_postgres(17)) as server:
        yield server


def test_a_plugin_that_is_forbidden_and_allowed_again(
    server: PrivatePostgres, kinesis: LocalKinesis, stream: str
) -> None:
    assert server.knows_plugin_setting, "17.11 and later can forbid plugins"
    server.psql("CREATE TABLE t (id int PRIMARY KEY)")
    site = CaptureSite(server, "postgres", kinesis, stream)
    with site.capture() as capture:
        capture.wait_for_log("streaming")
        turns(capture, ready=True)
        server.set("output_plugin_libraries", "pgoutput, test_decoding")
        server.psql("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots")
        turns(capture, ready=False, sentence="forbids the output plugin wal2json (pgoutput, test_decoding)")
        assert len(capture.events("PluginForbidden")) == 1

        server.set("output_plugin_libraries", ALLOWED)
        turns(capture, ready=True)
        site.psql("INSERT INTO t VALUES (1)")
        site.wait_until_confirmed()
        assert capture.events("GAP") == []


def test_a_server_that_never_allowed_it(kinesis: LocalKinesis, stream: str) -> None:
    with PrivatePostgres(programs=newer_postgres(17), allow_wal2json=False) as server:
        site = CaptureSite(server, "postgres", kinesis, stream)
        with site.capture() as capture:
            turns(capture, ready=False, sentence="forbids the output plugin wal2json")
            server.set("output_plugin_libraries", ALLOWED)
            turns(capture, ready=True)

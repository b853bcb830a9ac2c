"""The TCP proxy breaks a Postgres line in each way that it says."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from penstock.local.postgres import PrivatePostgres
from tests.servers.tcp_proxy import TcpProxy


@pytest.fixture
def proxy(postgres: PrivatePostgres) -> Iterator[TcpProxy]:
    with TcpProxy("127.0.0.1", postgres.port) as proxy:
        yield proxy


@pytest.fixture
def conninfo(postgres: PrivatePostgres, proxy: TcpProxy) -> str:
    return postgres.conninfo(port=proxy.port, connect_timeout=2)


def test_passes_bytes_both_ways(proxy: TcpProxy, conninfo: str) -> None:
    sent = "x" * 3_000_000
    with psycopg.connect(conninfo) as connection:
        assert connection.execute("SELECT %s || 'y'", [sent]).fetchone() == (sent + "y",)
        assert proxy.open_connections == 1
    assert proxy.accepted == 1
    assert proxy.bytes_up > len(sent)
    assert proxy.bytes_down > len(sent)


def test_cut_resets_connections_and_takes_new_ones(proxy: TcpProxy, conninfo: str) -> None:
    with psycopg.connect(conninfo) as connection:
        connection.execute("SELECT 1")
        proxy.cut()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    assert proxy.cuts == 1
    assert proxy.open_connections == 0
    with psycopg.connect(conninfo) as connection:
        connection.execute("SELECT 1")


def test_cut_reaches_the_server_too(proxy: TcpProxy, conninfo: str, postgres: PrivatePostgres) -> None:
    with psycopg.connect(conninfo, application_name="cut off"):
        proxy.cut()
        sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'cut off'"
        for _ in range(500):
            if postgres.psql(f"SELECT pg_sleep(0.01); {sessions}") == [(0,)]:
                break
        else:
            pytest.fail("the server still has the session")


def test_a_frozen_line_moves_nothing_and_goes_on(proxy: TcpProxy, conninfo: str) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection, ThreadPoolExecutor() as pool:
        connection.execute("SELECT 1")
        proxy.freeze()
        moved = proxy.bytes_up, proxy.bytes_down
        asked = pool.submit(connection.execute, "SELECT 42")
        with pytest.raises(psycopg.errors.ConnectionTimeout):
            psycopg.connect(conninfo)
        assert (proxy.bytes_up, proxy.bytes_down) == moved
        assert not asked.done()
        proxy.thaw()
        assert asked.result(10).fetchone() == (42,)


def test_a_frozen_line_hides_that_the_server_ended_the_session(
    proxy: TcpProxy, conninfo: str, postgres: PrivatePostgres
) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        pid = connection.info.backend_pid
        proxy.freeze()
        postgres.psql(f"SELECT pg_terminate_backend({pid}, 5000)")
        connection.pgconn.consume_input()
        assert not connection.closed
        proxy.thaw()
        with pytest.raises(psycopg.errors.AdminShutdown):
            connection.execute("SELECT 1")


def test_refuse_and_accept(proxy: TcpProxy, conninfo: str) -> None:
    port = proxy.port
    with psycopg.connect(conninfo) as connection:
        proxy.refuse()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError, match="Connection refused"):
        psycopg.connect(conninfo)
    proxy.accept()
    with psycopg.connect(conninfo) as connection:
        connection.execute("SELECT 1")
    assert proxy.port == port


def test_a_target_that_is_down_ends_the_connection(proxy: TcpProxy) -> None:
    with TcpProxy("127.0.0.1", proxy.port) as outer:
        proxy.refuse()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(host="127.0.0.1", port=outer.port, user="postgres", connect_timeout=5)

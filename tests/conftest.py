"""The servers that tests run against: real ones, on this machine; a missing one is an error, not a skip."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator

import pytest
from xdist.remote import Producer

from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from tests.lanes import Lanes
from tests.servers.fault_proxy import FaultProxy
from tests.servers.slots import SlotWatch

LONG_TESTS = "PENSTOCK_LONG_TESTS"

pytest_plugins = ["tests.servers.s3_fixtures", "tests.servers.shapes_fixtures"]


def pytest_configure() -> None:
    """A shell starts what it runs in the background without SIGINT; what tests start would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes minutes, unless it is asked for (`make test-long`)."""
    if os.environ.get(LONG_TESTS) == "1":
        return
    long = [item for item in items if item.get_closest_marker("long") is not None]
    config.hook.pytest_deselected(items=long)
    items[:] = [item for item in items if item not in long]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Lanes | None:
    """Whole files for each worker (`-n 2 --dist loadfile`): in lanes."""
    return Lanes(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def postgres() -> Iterator[PrivatePostgres]:
    """A PostgreSQL with wal2json, shared by all tests; a test that stops it need not start it again."""
    with PrivatePostgres(settings={"log_replication_commands": "on"}) as server:
        yield server


@pytest.fixture(scope="session")
def kinesis() -> Iterator[LocalKinesis]:
    """A Kinesis, shared by all tests."""
    with LocalKinesis() as server:
        yield server


@pytest.fixture(scope="session")
def slot_watch(postgres: PrivatePostgres) -> SlotWatch:
    """The watch over that server's replication slots."""
    return SlotWatch(postgres)


@pytest.fixture
def database(postgres: PrivatePostgres) -> Iterator[str]:
    """A fresh database; its slots are dropped and it is deleted after the test."""
    name = postgres.create_database()
    yield name
    postgres.psql(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture
def stream(kinesis: LocalKinesis) -> Iterator[str]:
    """A fresh stream with four shards."""
    name = f"stream-{secrets.token_hex(4)}"
    kinesis.create_stream(name, 4)
    yield name
    kinesis.delete_stream(name)


@pytest.fixture
def fault_proxy(kinesis: LocalKinesis) -> Iterator[FaultProxy]:
    """A fault proxy before the Kinesis; everything passes until a test says otherwise."""
    with FaultProxy(kinesis.endpoint_url) as proxy:
        yield proxy


@pytest.fixture(autouse=True)
def no_slot_is_dropped(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test that used `postgres`: every permanent slot is still there; then clean up."""
    if "postgres" not in request.fixturenames:
        yield
        return
    server: PrivatePostgres = request.getfixturevalue("postgres")
    watch: SlotWatch = request.getfixturevalue("slot_watch")
    database: str | None = request.getfixturevalue("database") if "database" in request.fixturenames else None
    yield
    if not server.running:
        server.start()
    lost = watch.vanished()
    if database is not None:
        watch.drop_all_of(database)
    assert not lost, f"a permanent replication slot was dropped: {lost}"

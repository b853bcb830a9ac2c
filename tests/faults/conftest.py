"""The rig of a fault test on the Kinesis side, and who gives out credentials for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from tests.faults.rig import Rig
from tests.servers.fake_sts import FakeSts
from tests.servers.fault_proxy import FaultProxy


@pytest.fixture
def rig(
    postgres: PrivatePostgres, database: str, kinesis: LocalKinesis, stream: str, fault_proxy: FaultProxy
) -> Rig:
    """A database, a stream, and the fault proxy before it."""
    return Rig(postgres, database, kinesis, stream, fault_proxy)


@pytest.fixture
def sts() -> Iterator[FakeSts]:
    """A server that gives out credentials."""
    with FakeSts() as server:
        yield server


@pytest.fixture
def token(tmp_path: Path) -> Path:
    """A token for it, in a file."""
    path = tmp_path / "token"
    path.write_text("a token")
    return path

"""The rig of a fault test on the Kinesis side."""

from __future__ import annotations

import pytest

from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from tests.faults.rig import Rig
from tests.servers.fault_proxy import FaultProxy


@pytest.fixture
def rig(
    postgres: PrivatePostgres, database: str, kinesis: LocalKinesis, stream: str, fault_proxy: FaultProxy
) -> Rig:
    """A database, a stream, and the fault proxy before it."""
    return Rig(postgres, database, kinesis, stream, fault_proxy)

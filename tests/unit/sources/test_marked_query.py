"""The options of a read of a marked stream."""

from __future__ import annotations

import pytest

from penstock.kinesis.read.errors import StreamReadError
from penstock.kinesis.read.marked_plan import ReadLimits
from penstock.sources.marked_query import MarkedQuery

LEAST = {"kinesis.streamName": "shop", "kinesis.region": "eu-west-1", "slot": "etl"}


def test_a_batch_is_bounded_whatever_is_said() -> None:
    assert MarkedQuery.parse(LEAST).limits == ReadLimits(2_000_000, 1 << 30)
    assert MarkedQuery.parse({**LEAST, "maxChangesPerBatch": "7"}).limits == ReadLimits(7, 1 << 30)


def test_a_loss_ends_a_query() -> None:
    assert MarkedQuery.parse({**LEAST, "failOnDataLoss": "True"}) == MarkedQuery.parse(LEAST)
    with pytest.raises(StreamReadError, match="failOnDataLoss, 'false': must be true"):
        MarkedQuery.parse({**LEAST, "failOnDataLoss": "false"})

"""The options of a read of a marked stream."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructType

from penstock.kinesis.read.errors import StreamReadError
from penstock.kinesis.read.marked_plan import ReadLimits
from penstock.sources.marked_query import MarkedQuery
from penstock.sources.penstock_source import PenstockSource

LEAST = {"kinesis.streamName": "shop", "kinesis.region": "eu-west-1", "slot": "etl"}


def test_a_batch_is_bounded_whatever_is_said() -> None:
    assert MarkedQuery.parse(LEAST).limits == ReadLimits(2_000_000, 1 << 30)
    assert MarkedQuery.parse({**LEAST, "maxChangesPerBatch": "7"}).limits == ReadLimits(7, 1 << 30)


def test_a_loss_ends_a_query() -> None:
    assert MarkedQuery.parse({**LEAST, "failOnDataLoss": "True"}) == MarkedQuery.parse(LEAST)
    with pytest.raises(StreamReadError, match="failOnDataLoss, 'false': must be true"):
        MarkedQuery.parse({**LEAST, "failOnDataLoss": "false"})


@pytest.mark.parametrize(
    ("said", "start"),
    [
        ("Latest", "latest"),
        ("16/b374d848", "16/B374D848"),
        ("00000001.00000016b374d848.000000000000", "00000001.00000016B374D848.000000000000"),
        ("00000001.00000016B374D848.000000000003", "00000001.00000016B374D848.000000000000"),
    ],
)
def test_a_query_begins_with_a_word_an_lsn_or_a_position(said: str, start: str) -> None:
    assert MarkedQuery.parse({**LEAST, "startingPosition": said}).start == start


@pytest.mark.parametrize("said", ["noon", "", "16/", "1.2.3", "00000001.00000016B374D848"])
def test_and_with_nothing_else(said: str) -> None:
    with pytest.raises(StreamReadError, match="must be earliest or latest, an LSN"):
        MarkedQuery.parse({**LEAST, "startingPosition": said})


def test_a_batch_has_nothing_from_the_latest_on() -> None:
    source = PenstockSource({**LEAST, "startingPosition": "latest"})
    with pytest.raises(StreamReadError, match="latest is for readStream"):
        source.reader(StructType())

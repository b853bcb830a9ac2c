from __future__ import annotations

from datetime import UTC, datetime

import pytest

from penstock.kinesis.read.reach import Limit
from penstock.kinesis.read.stream_offset import Starting
from penstock.sources.kinesis_options import KinesisOptionError, KinesisOptions

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/shop.changes"
NAMED = {"kinesis.streamName": "shop", "kinesis.region": "eu-west-1"}


def test_a_name_and_a_region_are_enough() -> None:
    options = KinesisOptions.parse({name.lower(): value for name, value in NAMED.items()})
    assert (options.stream, options.name, options.region) == ("shop", "shop", "eu-west-1")
    assert options.fails_on_data_loss
    assert options.starting is None
    assert options.limit == Limit(seconds=600)


def test_an_arn_says_its_region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    options = KinesisOptions.parse({"kinesis.streamName": ARN})
    assert (options.stream, options.name, options.region) == (ARN, "shop.changes", "eu-west-1")


def test_everything_can_be_said() -> None:
    options = KinesisOptions.parse(
        {
            **NAMED,
            "kinesis.startingPosition": "at_timestamp",
            "kinesis.startingTimestamp": "2026-11-17T08:00:00Z",
            "kinesis.failOnDataLoss": "False",
            "kinesis.maxRecordsPerBatch": "1000",
            "kinesis.maxBytesPerBatch": "5000000",
            "kinesis.maxSecondsPerBatch": "60",
        }
    )
    assert options.starting == Starting("AT_TIMESTAMP", datetime(2026, 11, 17, 8, tzinfo=UTC))
    assert not options.fails_on_data_loss
    assert options.limit == Limit(1000, 5_000_000, 60)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kinesis.streamName": ""}, "kinesis.streamName='': say the stream's name or its ARN"),
        ({"kinesis.streamName": "arn:aws:sqs:x"}, "its ARN"),
        ({"kinesis.region": ""}, "no region"),
        ({"kinesis.streamName": ARN, "kinesis.region": "us-east-1"}, "the stream's ARN says eu-west-1"),
        ({"kinesis.shards": "3"}, "unknown option kinesis.shards; there are kinesis.streamName"),
        ({"path": "x"}, "unknown option path"),
        ({"kinesis.startingPosition": "EARLIEST"}, "one of LATEST, TRIM_HORIZON, AT_TIMESTAMP"),
        ({"kinesis.startingPosition": "AT_TIMESTAMP"}, "go together"),
        ({"kinesis.startingTimestamp": "2026-11-17T08:00:00Z"}, "go together"),
        ({"kinesis.failOnDataLoss": "maybe"}, "it is true or false"),
        ({"kinesis.maxRecordsPerBatch": "0"}, "a whole number above 0"),
        ({"kinesis.maxBytesPerBatch": "1e6"}, "a whole number above 0"),
    ],
)
def test_a_bad_option_is_named_with_its_rule(
    given: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    with pytest.raises(KinesisOptionError, match=said):
        KinesisOptions.parse({**NAMED, **given})


@pytest.mark.parametrize("text", ["yesterday", "2026-11-17", "2026-11-17T08:00:00"])
def test_a_time_has_a_zone(text: str) -> None:
    position = {"kinesis.startingPosition": "AT_TIMESTAMP", "kinesis.startingTimestamp": text}
    with pytest.raises(KinesisOptionError, match="ISO 8601 with a time zone"):
        KinesisOptions.parse({**NAMED, **position})


@pytest.mark.parametrize(
    "name",
    ["kinesis.awsAccessKeyId", "awsSecretKey", "kinesis.sessionToken", "aws_access_key_id", "password"],
)
def test_a_credential_is_refused_and_not_repeated(name: str) -> None:
    with pytest.raises(KinesisOptionError, match="credentials don't belong in options") as raised:
        KinesisOptions.parse({**NAMED, name: "hidden-value"})
    assert "hidden-value" not in str(raised.value)

"""What stands behind `--from`."""

from __future__ import annotations

import pytest

from penstock.settings.errors import SettingsError
from penstock.settings.loading import load_stream_source

REGION = {"AWS_REGION": "eu-west-1"}
ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/changes"


def test_the_slot_is_capture_s_own_default_and_manifests_are_in_the_stream() -> None:
    found = load_stream_source("kinesis://changes", REGION, None)
    assert (found.stream, found.slot, found.marks) == ("changes", "etl_slot_wal2json", None)
    assert (found.region, found.endpoint_url) == ("eu-west-1", None)


def test_slot_marks_and_an_arn() -> None:
    endpoint = {"AWS_ENDPOINT_URL_KINESIS": "http://127.0.0.1:4567"}
    found = load_stream_source(f"kinesis://{ARN}?slot=mine&marks=changes-marks", REGION | endpoint, None)
    assert (found.stream, found.slot, found.marks) == (ARN, "mine", "changes-marks")
    assert found.endpoint_url == endpoint["AWS_ENDPOINT_URL_KINESIS"]


@pytest.mark.parametrize(
    ("url", "line"),
    [
        ("changes", "--from 'changes': must be kinesis://STREAM"),
        ("kafka://changes", "must be kinesis://STREAM"),
        ("kinesis://", "must be kinesis://STREAM"),
        ("kinesis://changes?table=a", "must be kinesis://STREAM"),
        ("kinesis://no spaces", "--from, the stream='no spaces': must be a stream name"),
        ("kinesis://changes?slot=Mine", "--from, slot='Mine': must be a slot name"),
    ],
)
def test_a_bad_one_is_named(url: str, line: str) -> None:
    with pytest.raises(SettingsError) as raised:
        load_stream_source(url, REGION, None)
    assert line in str(raised.value)


def test_the_region_is_needed() -> None:
    with pytest.raises(SettingsError, match="AWS_REGION is not set"):
        load_stream_source("kinesis://changes", {}, None)

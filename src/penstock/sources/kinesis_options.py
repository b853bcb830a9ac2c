"""The options of `format("penstock_kinesis")`, each with its rule (docs/spark.md)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from penstock.errors import PenstockError
from penstock.kinesis.read.reach import Limit
from penstock.kinesis.read.stream_offset import Starting

STREAM: Final = "kinesis.streamName"
REGION: Final = "kinesis.region"
ENDPOINT: Final = "kinesis.endpointUrl"
POSITION: Final = "kinesis.startingPosition"
TIMESTAMP: Final = "kinesis.startingTimestamp"
FAIL: Final = "kinesis.failOnDataLoss"
RECORDS: Final = "kinesis.maxRecordsPerBatch"
BYTES: Final = "kinesis.maxBytesPerBatch"
SECONDS: Final = "kinesis.maxSecondsPerBatch"
OPTIONS: Final = (STREAM, REGION, ENDPOINT, POSITION, TIMESTAMP, FAIL, RECORDS, BYTES, SECONDS)

DEFAULT_SECONDS: Final = 600
_POSITIONS: Final = ("LATEST", "TRIM_HORIZON", "AT_TIMESTAMP")
_SECRET: Final = re.compile("secret|password|token|credential|access_?key", re.IGNORECASE)
_ARN: Final = re.compile(r"arn:[\w-]+:kinesis:(?P<region>[\w-]+):\d+:stream/(?P<name>[\w.-]+)")
_NAME: Final = re.compile(r"[\w.-]{1,128}")


class KinesisOptionError(PenstockError):
    """An option that isn't as it should be; the sentence names it and the rule."""


@dataclass(frozen=True, slots=True)
class KinesisOptions:
    """What was asked for."""

    stream: str
    """A name or an ARN."""
    name: str
    """The name alone."""
    region: str
    endpoint_url: str | None
    starting: Starting | None
    """None: batches begin at TRIM_HORIZON, streams at LATEST."""
    fails_on_data_loss: bool
    limit: Limit

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> KinesisOptions:
        """Read the options; KinesisOptionError names a bad one."""
        known = {name.lower(): name for name in OPTIONS}
        given: dict[str, str] = {}
        for name, value in options.items():
            if name.lower() in known:
                given[known[name.lower()]] = value
            elif _SECRET.search(name):
                raise KinesisOptionError(
                    f"option {name}: credentials don't belong in options, which plans and logs show. Give "
                    "the driver and the executors a role, or the variables or files that the AWS SDKs know"
                )
            else:
                raise KinesisOptionError(f"unknown option {name}; there are {', '.join(OPTIONS)}")
        stream = given.get(STREAM, "")
        arn = _ARN.fullmatch(stream)
        if arn is None and not _NAME.fullmatch(stream):
            raise KinesisOptionError(f"{STREAM}={stream!r}: say the stream's name or its ARN")
        return cls(
            stream,
            stream if arn is None else arn["name"],
            _region(given, None if arn is None else arn["region"]),
            given.get(ENDPOINT),
            _starting(given),
            _boolean(given, FAIL, default=True),
            Limit(_whole(given, RECORDS), _whole(given, BYTES), _whole(given, SECONDS, DEFAULT_SECONDS)),
        )


def _region(given: Mapping[str, str], of_arn: str | None) -> str:
    said = given.get(REGION)
    if said is not None and of_arn is not None and said != of_arn:
        raise KinesisOptionError(f"{REGION}={said!r}: the stream's ARN says {of_arn}; leave {REGION} out")
    region = said or of_arn or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not region:
        raise KinesisOptionError(f"no region: say {REGION}, give the stream's ARN, or set AWS_REGION")
    return region


def _starting(given: Mapping[str, str]) -> Starting | None:
    kind = given.get(POSITION, "").upper() or None
    text = given.get(TIMESTAMP)
    if kind is not None and kind not in _POSITIONS:
        raise KinesisOptionError(f"{POSITION}={given[POSITION]!r}: it is one of {', '.join(_POSITIONS)}")
    if (kind == "AT_TIMESTAMP") != (text is not None):
        raise KinesisOptionError(f"{TIMESTAMP} and {POSITION}=AT_TIMESTAMP go together")
    if kind is None or text is None:
        return None if kind is None else Starting(kind)
    try:
        timestamp = datetime.fromisoformat(text)
    except ValueError:
        timestamp = datetime.min
    if timestamp.tzinfo is None:
        example = "2026-11-17T08:00:00Z"
        raise KinesisOptionError(f"{TIMESTAMP}={text!r}: say it in ISO 8601 with a time zone, like {example}")
    return Starting(kind, timestamp)


def _boolean(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise KinesisOptionError(f"{name}={given[name]!r}: it is true or false")
    return text == "true"


def _whole(given: Mapping[str, str], name: str, default: int | None = None) -> int | None:
    text = given.get(name)
    if text is None:
        return default
    if not re.fullmatch("[1-9][0-9]{0,17}", text):
        raise KinesisOptionError(f"{name}={text!r}: it is a whole number above 0")
    return int(text)

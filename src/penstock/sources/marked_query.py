"""The options of a read of a marked stream."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Final, NamedTuple

from penstock.kinesis.read.client import StreamClient
from penstock.kinesis.read.client_pool import CLIENTS
from penstock.kinesis.read.errors import StreamReadError
from penstock.kinesis.read.marked_plan import BOUNDED, ReadLimits
from penstock.model.relation import Relation
from penstock.sources.log_source import COMMA_OUTSIDE_QUOTES
from penstock.sources.marked_start import parse_start

STREAM: Final = "kinesis.streamname"
_FAIL: Final = "failondataloss"
_OPTIONS: Final = {
    STREAM: "kinesis.streamName",
    "kinesis.region": "kinesis.region",
    "kinesis.endpointurl": "kinesis.endpointUrl",
    "kinesis.marksstreamname": "kinesis.marksStreamName",
    "slot": "slot",
    "startingposition": "startingPosition",
    "table": "table",
    "raw": "raw",
    "maxchangesperbatch": "maxChangesPerBatch",
    "maxbytesperbatch": "maxBytesPerBatch",
    _FAIL: "failOnDataLoss",
}
"""Spark gives their names in lower case."""
EARLIEST: Final = "earliest"
LATEST: Final = "latest"


class MarkedQuery(NamedTuple):
    """The options of a read."""

    stream: str
    region: str
    endpoint_url: str | None
    marks_stream: str
    slot: str
    start: str
    """A word, or what `parse_start` gives."""
    tables: tuple[Relation, ...]
    """None named: all of them."""
    is_raw: bool
    """Whether records are given as they are, and not as rows of these tables."""
    limits: ReadLimits

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> MarkedQuery:
        """Read the options; StreamReadError names a bad one."""
        given = {name.lower(): value for name, value in options.items()}
        for name in given:
            if name not in _OPTIONS:
                raise StreamReadError(
                    f"unknown option {name}; there are {', '.join(_OPTIONS.values())}. (Credentials are no"
                    " options: driver and executors find them by the usual AWS chain)"
                )
        for name in (STREAM, "kinesis.region", "slot"):
            if not given.get(name):
                raise StreamReadError(f"option {_OPTIONS[name]} is missing")
        if (text := given.get(_FAIL, "true").lower()) != "true":
            raise StreamReadError(
                f"option {_OPTIONS[_FAIL]}, {text!r}: must be true. A batch holds whole transactions:"
                " what is missing can't be left out. Fix: a new checkpoint, with startingPosition behind it"
            )
        tables = _tables(given["table"]) if given.get("table") else ()
        return cls(
            given[STREAM],
            given["kinesis.region"],
            given.get("kinesis.endpointurl"),
            given.get("kinesis.marksstreamname") or given[STREAM],
            given["slot"],
            _start(given.get("startingposition", EARLIEST)),
            tables,
            not tables or given.get("raw", "false").lower() == "true",
            ReadLimits(
                _limit(given, "maxchangesperbatch", BOUNDED.changes),
                _limit(given, "maxbytesperbatch", BOUNDED.size_bytes),
            ),
        )

    def open(self, stream: str | None = None) -> StreamClient:
        """A client of the stream, or of that of the manifests."""
        return StreamClient(stream=stream or self.stream, region=self.region, endpoint_url=self.endpoint_url)

    def lend(self) -> AbstractContextManager[StreamClient]:
        """A client of the stream, for a task that is one of many in this process."""
        return CLIENTS.lend(self.stream, self.region, self.endpoint_url)


def _start(text: str) -> str:
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    try:
        return parse_start(text)
    except ValueError:
        raise StreamReadError(
            f"option startingPosition, {text!r}: must be {EARLIEST} or {LATEST}, an LSN (16/B374D848), or a"
            " position as errors name it (00000001.00000016B374D848.000000000000)"
        ) from None


def _tables(text: str) -> tuple[Relation, ...]:
    try:
        return tuple(Relation.parse(each.strip()) for each in COMMA_OUTSIDE_QUOTES.split(text))
    except ValueError as error:
        raise StreamReadError(f"option table, {text!r}: {error}; say schema.table,schema.table") from None


def _limit(given: Mapping[str, str], name: str, default: int | None) -> int | None:
    if name not in given:
        return default
    if not given[name].isascii() or not given[name].isdigit() or int(given[name]) < 1:
        raise StreamReadError(f"option {_OPTIONS[name]}, {given[name]!r}: must be a whole number, 1 or more")
    return int(given[name])

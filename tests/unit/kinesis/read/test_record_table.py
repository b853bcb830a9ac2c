"""Whose a record is: all that read tables of a marked stream go by it, so that none leaves a change out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

from penstock.decoding.decoder import Summary
from penstock.kinesis.marked.pointer import pointer_record
from penstock.kinesis.read.client import ReadRecord
from penstock.kinesis.read.errors import RecordsUnusable
from penstock.kinesis.read.marked_ranges import MarkedRecord
from penstock.lake.stream import told
from penstock.model.log_offset import LogOffset
from penstock.model.relation import Relation
from penstock.shapes.feed import stream_part
from penstock.sources.marked_rows import of_tables

T = Relation("public", "t")
COMMIT = b'{"action":"C"}'
OTHER = b'{"action":"I","schema":"public","table":"other","columns":[]}'


def pointer(schema: str | None, table: str | None) -> bytes:
    what = Summary(schema=schema, table=table)
    return pointer_record(
        b"{", what, url="file:///q/one", reason="not_a_json_object", offset=LogOffset(0x64, 2)
    )


def records(*payloads: bytes) -> Iterator[MarkedRecord]:
    read = ReadRecord(1, "key", b"", datetime(2026, 1, 1, tzinfo=UTC))
    return (
        MarkedRecord("00000001.0000000000000064.000000000003", payload, "shard-0", read)
        for payload in payloads
    )


def by_source(found: Iterator[MarkedRecord]) -> list[str]:
    return [str(relation) for relation, _ in of_tables(found, frozenset({T}))]


def by_shapes(found: Iterator[MarkedRecord]) -> list[str]:
    return [name for batch in stream_part._batches(found) for name in batch["relation"].to_pylist()]


def by_verify(found: Iterator[MarkedRecord]) -> list[str]:
    return [name for batch in told._batches(found) for name in batch["relation"].to_pylist()]


Read = Callable[[Iterator[MarkedRecord]], list[str]]
READERS = pytest.mark.parametrize("read", [by_source, by_shapes, by_verify])


@READERS
def test_a_pointer_that_names_no_table_is_an_error(
    read: Callable[[Iterator[MarkedRecord]], list[str]],
) -> None:
    with pytest.raises(RecordsUnusable, match="may be anybody's"):
        read(records(pointer(None, None)))


@READERS
def test_one_that_names_it_counts_and_boundaries_do_not(
    read: Callable[[Iterator[MarkedRecord]], list[str]],
) -> None:
    assert [name for name in read(records(COMMIT, OTHER, pointer("public", "t"))) if name == str(T)] == [
        str(T)
    ]


def test_whoever_reads_everything_sees_them_all() -> None:
    found = list(of_tables(records(COMMIT, pointer(None, None)), frozenset()))
    assert [relation for relation, _ in found] == [None, None]

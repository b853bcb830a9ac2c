"""Blocks of a stream: a boundary that a reader was given holds, whatever is joined meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from penstock.kinesis.marked.manifest import ACTION, Manifest, TableMark
from penstock.kinesis.read import joining
from penstock.kinesis.read.chain import Link
from penstock.lake.ports import ChangePart
from penstock.model.log_offset import LogOffset
from penstock.model.relation import Relation
from penstock.model.stream_position import StreamPosition
from penstock.shapes.feed import stream_backlog
from penstock.shapes.feed.stream_backlog import BLOCK_BYTES, StreamBacklog
from penstock.shapes.feed.stream_part import StreamBlock
from penstock.shapes.pace.held import whole

CAME = datetime(2026, 11, 17, tzinfo=UTC)
TABLE = Relation("public", "a")


def link(since: int, resolved: int, size: int = 10) -> Link:
    start, end = str(StreamPosition(1, since)), str(StreamPosition(1, resolved))
    tables = {str(TABLE): TableMark(1, None)}
    return Link(Manifest(ACTION, "7", "s", "by", start, end, 1, size, {}, tables), start)


class Blocks:
    """A backlog from 100 on, and the ends of the blocks that readers get."""

    def __init__(self) -> None:
        self.log = StreamBacklog(StreamPosition(1, 100), self._parts, lambda _: 1)
        self._found: list[tuple[str, int]] = []

    def close(self, *links: Link) -> None:
        """Each is a block of its own."""
        for each in links:
            self.log.append(each, CAME)
            self.log.flush(0.0)

    def read(self, after: int, up_to: LogOffset) -> list[tuple[str, int]]:
        """What a reader gets: blocks by their names, and up to where."""
        self._found = []
        self.log.read_plan({TABLE}, whole(after), up_to)
        return self._found

    def _parts(
        self, block: StreamBlock, relations: frozenset[Relation], after: LogOffset
    ) -> Sequence[ChangePart]:
        self._found.append((block.name, block.up_to.tx_offset))
        return ()


def name(since: int, resolved: int) -> str:
    return f"{StreamPosition(1, since)} {StreamPosition(1, resolved)}"


def test_a_block_that_grew_beyond_a_boundary_is_read_up_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_backlog, "_MANY_BLOCKS", 1)
    blocks = Blocks()
    blocks.close(link(100, 110))
    boundary = blocks.log.boundary_within({TABLE}, whole(99), 1 << 20)
    assert boundary == whole(109)
    blocks.close(link(110, 120))
    assert blocks.read(99, boundary) == [(name(100, 120), 109)]
    assert blocks.read(109, whole(119)) == [(name(100, 120), 119)]


def test_what_begins_at_a_boundary_is_not_read() -> None:
    blocks = Blocks()
    blocks.close(link(100, 110), link(110, 120), link(120, 130))
    assert blocks.read(99, whole(119)) == [(name(100, 110), 109), (name(110, 120), 119)]


def test_full_blocks_are_not_put_together_to_see_that_they_are_full(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Link] = []

    def joined(first: Link, second: Link) -> Link | None:
        tried.append(second)
        return joining.joined(first, second)

    monkeypatch.setattr(stream_backlog, "_MANY_BLOCKS", 1)
    monkeypatch.setattr(stream_backlog, "joined", joined)
    blocks = Blocks()
    blocks.close(*[link(lsn, lsn + 10, BLOCK_BYTES) for lsn in range(100, 150, 10)])
    assert not tried

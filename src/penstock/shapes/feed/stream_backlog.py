"""StreamBacklog: what manifests say of changes that some shape still needs, in blocks that are read once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from threading import Lock
from typing import Final, NamedTuple

from penstock.changelog.errors import ChangeLogTrimmed
from penstock.kinesis.read.chain import Link
from penstock.kinesis.read.joining import joined
from penstock.kinesis.read.marked_ranges import plan_tasks
from penstock.kinesis.read.shards import ShardInfo
from penstock.lake.ports import ChangePart
from penstock.model.log_offset import LogOffset
from penstock.model.lsn import format_lsn
from penstock.model.relation import Relation
from penstock.model.stream_position import StreamPosition
from penstock.shapes.feed.stream_part import StreamBlock
from penstock.shapes.pace.held import whole

BLOCK_BYTES: Final = 16 << 20
"""A block grows no further: it is what one reading of the stream brings, whoever needs how much of it."""
_MANY_BLOCKS: Final = 128


class _Kept(NamedTuple):
    link: Link
    arrived: datetime
    """When the first manifest of it came; they need not have come in order."""

    @property
    def end_lsn(self) -> int:
        return self.link.manifest.resolved_position.commit_lsn

    @property
    def end(self) -> LogOffset:
        """No transaction has this commit LSN: all of the block lie below."""
        return whole(self.end_lsn - 1)

    @property
    def start_lsn(self) -> int:
        return StreamPosition.parse(self.link.start).commit_lsn


MakeParts = Callable[[StreamBlock, frozenset[Relation], LogOffset], Sequence[ChangePart]]
"""The parts of a block up to its `up_to`, for a reader of these relations behind an offset."""


class StreamBacklog:
    """See Backlog. Knows no clock and no socket; the stream itself is the store.

    The problem. Shapes flush at their own pace, hundreds of manifests come a minute, and each shape's changes
    stand among everybody's. Read for each shape and manifest, the stream would be read many times over.

    1. Manifests that follow each other are joined to a block, until a flush begins (`flush`) or the block is
       large. Shapes read whole blocks, so whoever is due at the same time reads the same ones.
    2. Blocks that are closed are joined further when there are many of them. So what is kept grows with the
       bytes that the slowest shape is behind, by a few hundred bytes for 16 MB, and not with time. That may
       happen at any moment: whoever was given a boundary that lies within a block now reads the block up to
       there.
    3. A block is dropped when nobody needs it (`trim`), or when a gap is behind it (`restart`).
    4. Whoever asks for what isn't there any more gets an error: nothing is passed over in silence.
    """

    def __init__(
        self, start: StreamPosition, make_parts: MakeParts, count_readers: Callable[[Link], int]
    ) -> None:
        """`count_readers`: how many shapes a link has changes for."""
        self._make_parts = make_parts
        self._count_readers = count_readers
        self._kept: list[_Kept] = []
        self._is_open = False
        """Whether the last block may grow."""
        self._begins_lsn = start.commit_lsn
        self._end = self._closed_end = whole(start.commit_lsn - 1)
        self._shards: dict[str, ShardInfo] = {}
        self._turn = Lock()

    @property
    def last_seen_txn_offset(self) -> LogOffset:
        """See Backlog: the end of the last manifest."""
        return self._end

    @property
    def last_persisted_txn_offset(self) -> LogOffset:
        """See Backlog: the end of the last closed block."""
        return self._closed_end

    @property
    def size_bytes(self) -> int:
        """How much of the stream is kept for shapes."""
        with self._turn:
            return sum(each.link.manifest.bytes for each in self._kept)

    @property
    def is_over_limit(self) -> bool:
        """See Backlog: the stream has its own room."""
        return False

    @property
    def is_half_full(self) -> bool:
        """See Backlog."""
        return False

    def is_flush_due(self, now: float) -> bool:
        """See Backlog: a block is closed when somebody wants to read it."""
        return False

    def unknown_shards(self, link: Link) -> set[str]:
        """The shards that the manifest speaks of, and that are not known yet: `know` them first."""
        return link.manifest.shards.keys() - self._shards.keys()

    def know(self, shards: Mapping[str, ShardInfo]) -> None:
        """The stream's shards; those of before are kept, for as long as blocks may speak of them."""
        self._shards |= shards

    def append(self, link: Link, arrived: datetime) -> LogOffset:
        """The next link of the chain; returns its end."""
        with self._turn:
            last = self._kept[-1] if self._is_open else None
            grown = None if last is None else _grown(last.link, link)
            if last is not None and grown is not None:
                self._kept[-1] = _Kept(grown, min(last.arrived, arrived))
            else:
                if self._kept:
                    self._closed_end = self._kept[-1].end
                self._kept.append(_Kept(link, arrived))
                self._is_open = True
            self._end = self._kept[-1].end
            return self._end

    def flush(self, now: float) -> LogOffset | None:
        """See Backlog: close the last block."""
        with self._turn:
            before, self._closed_end, self._is_open = self._closed_end, self._end, False
            if len(self._kept) > _MANY_BLOCKS:
                self._kept = _fewer(self._kept)
            return None if before == self._closed_end else self._closed_end

    def trim(self, offset: LogOffset) -> int:
        """See Backlog."""
        with self._turn:
            kept = [each for each in self._kept if each.end > min(offset, self._closed_end)]
            gone = len(self._kept) - len(kept)
            if gone:
                self._begins_lsn = self._kept[gone - 1].end_lsn
            self._kept = kept
            return gone

    def restart(self, start: StreamPosition) -> None:
        """Something is missing before this position: what is kept would be half of a chain."""
        with self._turn:
            self._kept, self._is_open = [], False
            self._begins_lsn = start.commit_lsn
            self._end = self._closed_end = whole(start.commit_lsn - 1)

    def oldest_needed(self, offset: LogOffset) -> datetime | None:
        """When the first manifest came that has more than this; None if there is none."""
        with self._turn:
            return next((each.arrived for each in self._kept if each.end > offset), None)

    def read_plan(
        self, relations: Collection[Relation], after: LogOffset, up_to: LogOffset
    ) -> list[ChangePart]:
        """See Backlog. ChangeLogTrimmed if some of that was dropped."""
        with self._turn:
            if after.tx_offset + 1 < self._begins_lsn and after < up_to:
                raise ChangeLogTrimmed(
                    f"the stream is known from {format_lsn(self._begins_lsn)} on, and a shape needs what is"
                    f" behind {format_lsn(max(0, after.tx_offset))}"
                )
            wanted = frozenset(relations)
            blocks = [
                each
                for each in self._readable(after)
                if whole(each.start_lsn - 1) < up_to and _share(each.link, wanted) > 0
            ]
            shards = dict(self._shards)
        found: list[ChangePart] = []
        for each in blocks:
            manifest = each.link.manifest
            tasks = plan_tasks([each.link], shards, manifest.resolved)
            name = f"{each.link.start} {manifest.resolved}"
            end, readers = min(each.end, up_to), self._count_readers(each.link)
            block = StreamBlock(tuple(tasks), end, manifest.bytes, name, readers)
            found += self._make_parts(block, wanted, after)
        return found

    def boundary_within(self, relations: Collection[Relation], after: LogOffset, max_bytes: int) -> LogOffset:
        """See Backlog: the end of a block."""
        wanted, size, end = frozenset(relations), 0.0, after
        with self._turn:
            for each in self._readable(after):
                share = _share(each.link, wanted) * each.link.manifest.bytes
                if size and size + share > max_bytes:
                    return end
                size, end = size + share, each.end
            return max(after, self._closed_end)

    def _readable(self, after: LogOffset) -> Iterator[_Kept]:
        return (each for each in self._kept if after < each.end <= self._closed_end)


def _share(link: Link, wanted: frozenset[Relation]) -> float:
    """About how much of a block's changes are of these relations; 0: surely none."""
    manifest = link.manifest
    if not manifest.changes:
        return 0.0
    if isinstance(manifest.tables, str):
        return 1.0
    counts = [mark.count for name in wanted if (mark := manifest.tables.get(str(name))) is not None]
    return sum(counts) / manifest.changes


def touches(link: Link, relations: Collection[Relation]) -> bool:
    """Whether the link may have changes of these relations."""
    return _share(link, frozenset(relations)) > 0


def bytes_of(link: Link, relations: Collection[Relation]) -> int:
    """About how many bytes of a link's changes are of these relations; 0 only if there are surely none."""
    share = _share(link, frozenset(relations))
    return max(1, round(share * link.manifest.bytes)) if share else 0


def _fewer(kept: Sequence[_Kept]) -> list[_Kept]:
    """Neighbours joined, as far as blocks may grow."""
    found: list[_Kept] = []
    for each in kept:
        grown = _grown(found[-1].link, each.link) if found else None
        if grown is None:
            found.append(each)
        else:
            found[-1] = _Kept(grown, min(found[-1].arrived, each.arrived))
    return found


def _grown(link: Link, more: Link) -> Link | None:
    """Both as one; None if that is too large, which costs nothing to see, or would not be exact."""
    if link.manifest.bytes + more.manifest.bytes > BLOCK_BYTES:
        return None
    return joined(link, more)

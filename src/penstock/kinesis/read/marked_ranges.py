"""The ranges of manifests, as tasks: each reads its shards once, drops repeats and counts what it found."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Final, NamedTuple

from penstock.kinesis.marked.pointer import POINTER_MEMBER
from penstock.kinesis.marked.prefix import PREFIX_BYTES, unmarked
from penstock.kinesis.read.chain import Link
from penstock.kinesis.read.client import MOST_RECORDS, SILENCE, Page, ReadRecord, Start, StreamClient
from penstock.kinesis.read.errors import AnotherStream, RecordsExpired, RecordsUnusable
from penstock.kinesis.read.positions import Positions
from penstock.kinesis.read.shards import ShardInfo, overlapping
from penstock.model.lsn import format_lsn

_MARK: Final = b'{"pos":"'
_SHORT_SILENCE: Final = 4
_MORE: Final = 20
_MORE_OF: Final = 50
"""So many records more than are counted, and one of so many: manifests stand among them."""


class Portion(NamedTuple):
    """What one manifest says of the shards of one task."""

    by: bytes
    since: bytes
    resolved: bytes
    start: bytes
    """What lies below was applied before."""
    end: bytes
    """What lies here or beyond comes with a later batch."""
    changes: int
    """How many positions must be found."""
    lasts: tuple[tuple[str, int], ...]
    """Of each shard that it speaks of, the number behind which it has nothing that counts."""


class ShardSpan(NamedTuple):
    """What is to be read of one shard."""

    shard: str
    first: int
    last: int
    changes: int = 1
    """How many are counted in it; there may be more records, of others or repeated."""


class MarkedTask(NamedTuple):
    """Shards that share keys, and what must be found in them. Portions are in order."""

    spans: tuple[ShardSpan, ...]
    portions: tuple[Portion, ...]


class MarkedRecord(NamedTuple):
    """A change of a marked stream."""

    position: str
    payload: bytes
    """Without the prefix: as the output plugin wrote it."""
    shard: str
    record: ReadRecord


def plan_tasks(links: Sequence[Link], shards: Mapping[str, ShardInfo], up_to: str) -> list[MarkedTask]:
    """The tasks of a batch; nothing at or beyond `up_to` is in it.

    A key that has moved, because its shard was split or merged, has its repeats in shards whose hash ranges
    overlap. These go to one task, so that it alone can tell repeats.
    """
    wanted = {name for link in links for name in link.manifest.shards}
    if gone := sorted(wanted - shards.keys()):
        raise RecordsExpired.with_shards(", ".join(gone))
    return [_task(group, links, up_to) for group in overlapping(shards, wanted)]


def _task(group: Sequence[str], links: Sequence[Link], up_to: str) -> MarkedTask:
    spans: dict[str, ShardSpan] = {}
    portions = []
    for link in links:
        count = 0
        lasts = []
        for name in group:
            found = link.manifest.shards.get(name)
            if found is None:
                continue
            first, last = int(found.first), int(found.last)
            known = spans.get(name, ShardSpan(name, first, last, 0))
            spans[name] = ShardSpan(
                name, min(known.first, first), max(known.last, last), known.changes + found.count
            )
            count += found.count
            lasts.append((name, last))
        if count:
            said = link.manifest
            end = min(said.resolved, up_to)
            by, since, resolved = (text.encode() for text in (said.by, said.since, said.resolved))
            portions.append(
                Portion(by, since, resolved, link.start.encode(), end.encode(), count, tuple(lasts))
            )
    return MarkedTask(tuple(spans.values()), tuple(portions))


def read_task(client: StreamClient, task: MarkedTask) -> Iterator[MarkedRecord]:
    """The changes of a task, each position once; an error, late, if they aren't what manifests say."""
    sieve = Sieve(task.portions)
    for span in task.spans:
        sieve.enter(span.shard)
        for record in read_span(client, span):
            if (kept := sieve.keep(record)) is not None:
                yield kept
        sieve.leave()
    yield from sieve.pointers()


def has_begin(client: StreamClient, span: ShardSpan) -> bool:
    """Whether the first record of a range is there.

    One that was accepted within the last second may be missed.
    """
    try:
        next(_read(client, span, _SHORT_SILENCE))
    except (AnotherStream, RecordsExpired):
        return False
    return True


def read_span(client: StreamClient, span: ShardSpan) -> Iterator[ReadRecord]:
    """Every record of a range, others' included; RecordsExpired if its first one is gone."""
    return _read(client, span, SILENCE)


def _read(client: StreamClient, span: ShardSpan, longest: int) -> Iterator[ReadRecord]:
    is_first = True
    silence = 0
    for page in _pages_there(client, span):
        silence = silence + 1 if not page.records and page.behind_ms == 0 else 0
        is_over = page.is_last or silence >= longest
        for record in page.records:
            if is_first and record.sequence != span.first:
                raise _expired(client, span)
            is_first = False
            if record.sequence <= span.last:
                yield record
            if record.sequence >= span.last:
                return
        if is_over and is_first:
            raise _expired(client, span)
        if is_over:
            raise RecordsUnusable(
                f"{client.stream}, {span.shard} ends before {span.last}, which a manifest names: the stream"
                " isn't the one that was written to"
            )
        # The next one comes while this one would still be held.
        del page


def _pages_there(client: StreamClient, span: ShardSpan) -> Iterator[Page]:
    try:
        yield from _pages(client, span)
    except RecordsExpired as error:
        # The shards are listed seldom: this one may have gone since then.
        raise RecordsExpired.with_shards(span.shard) from error


def _pages(client: StreamClient, span: ShardSpan) -> Iterator[Page]:
    """Pages that end a little behind a range which holds nothing but what is counted; then full ones.

    What is read beyond its end is read in vain, and of the 2 MB/s that all readers of the shard share.
    """
    expected = span.changes + span.changes // _MORE_OF + _MORE
    count = -(-expected // MOST_RECORDS)
    most = -(-expected // count)
    start = Start.at(span.first)
    left = count
    for page in client.pages(span.shard, start, most=most):
        left -= 1
        if page.records:
            start = Start.after(page.records[-1].sequence)
        yield page
        del page
        if left <= 0 and most < MOST_RECORDS:
            break
    else:
        return
    yield from client.pages(span.shard, start)


def _expired(client: StreamClient, span: ShardSpan) -> RecordsExpired:
    return RecordsExpired(
        f"{client.stream}, {span.shard}: the records from {span.first} on are gone: the stream's retention"
        " has passed them. Fix: begin again, with a new snapshot of what is kept downstream, and let the"
        " stream keep records longer than readers may fall behind"
    )


def _also(portions: Sequence[Portion]) -> list[list[int]]:
    """For each portion, those behind it that begin before it ends."""
    lowest: list[bytes] = []
    """Of each portion and all behind it: the lowest `since`."""
    for portion in reversed(portions):
        lowest.append(min(portion.since, lowest[-1]) if lowest else portion.since)
    lowest.reverse()
    found = []
    for index, portion in enumerate(portions):
        later = index + 1
        reaching = []
        while later < len(portions) and lowest[later] < portion.resolved:
            if portions[later].since < portion.resolved:
                reaching.append(later)
            later += 1
        found.append(reaching)
    return found


class Sieve:
    """Keeps the records of some portions, each position once, originals before pointers.

    1. Shards are read one after the other, each in the order of its numbers.
    2. A portion has ended where all its shards are read beyond its last numbers. Then what was found must be
       what it says, else RecordsUnusable; and its positions are forgotten.
    3. What comes behind its end is a repeat, whatever its position.
    4. Another sender's record at the same position is no part of it, and no original of its pointers: that
       sender may be another slot's, or have had other filters.
    """

    def __init__(self, portions: Sequence[Portion]) -> None:
        self._portions = portions
        self._ends = [portion.resolved for portion in portions]
        self._seen: list[Positions | None] = [Positions() for _ in portions]
        """None: it has ended."""
        self._unread = [len(portion.lasts) for portion in portions]
        """How many shards it has still something in."""
        # A manifest may begin below what was applied: its answer was lost and another one says it again, or
        # another leader began where the slot stood. Then several speak of a position.
        self._also = _also(portions)
        self._pointers: dict[bytes, MarkedRecord] = {}
        self._shard = ""
        self._lasts: list[tuple[float, int]] = []
        """In this shard: where portions have their last, the lowest at the end; and theirs."""
        self._next = inf

    @property
    def held(self) -> int:
        """How many positions it has in mind."""
        return sum(len(seen) for seen in self._seen if seen is not None)

    def enter(self, shard: str) -> None:
        """The records of this shard come next."""
        self._shard = shard
        found = [
            (last, index)
            for index, portion in enumerate(self._portions)
            for name, last in portion.lasts
            if name == shard
        ]
        self._lasts = [(inf, -1), *sorted(found, reverse=True)]
        self._next = self._lasts[-1][0]

    def leave(self) -> None:
        """All of this shard was read."""
        self._pass(inf)

    def keep(self, record: ReadRecord) -> MarkedRecord | None:
        """The change that this record is, if it is one, and new."""
        if record.sequence > self._next:
            self._pass(record.sequence)
        data = record.data
        if not data.startswith(_MARK):
            return None
        position, by = data[8:46], data[54:66]
        index = bisect_right(self._ends, position)
        if index == len(self._ends):
            return None
        is_new = False
        for each in (index, *self._also[index]):
            portion, seen = self._portions[each], self._seen[each]
            if seen is not None and portion.by == by and portion.since <= position:
                is_new |= seen.add(position) and each == index
        portion = self._portions[index]
        if not portion.start <= position < portion.end:
            return None
        is_pointer = data.startswith(POINTER_MEMBER, PREFIX_BYTES)
        if not is_pointer and by == portion.by:
            is_new |= self._pointers.pop(position, None) is not None
        if not is_new:
            return None
        kept = MarkedRecord(position.decode(), unmarked(data), self._shard, record)
        if not is_pointer:
            return kept
        self._pointers[position] = kept
        return None

    def pointers(self) -> Iterator[MarkedRecord]:
        """Those whose originals aren't there."""
        yield from self._pointers.values()

    def _pass(self, number: float) -> None:
        """Everything below a number was read."""
        while self._lasts[-1][0] < number:
            _, index = self._lasts.pop()
            self._unread[index] -= 1
            if not self._unread[index]:
                self._end(index)
        self._next = self._lasts[-1][0]

    def _end(self, index: int) -> None:
        portion, seen = self._portions[index], self._seen[index]
        assert seen is not None, "a portion ends once"
        if len(seen) != portion.changes:
            since, resolved = (format_lsn(int(end[9:25], 16)) for end in (portion.since, portion.resolved))
            raise RecordsUnusable(
                f"the stream has {len(seen)} changes from {since} to {resolved}, and its manifest says"
                f" {portion.changes}: it isn't what was written. Fix: begin again, with a new snapshot"
            )
        self._seen[index] = None

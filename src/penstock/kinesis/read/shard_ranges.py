"""The records of a range that was fixed before: the same whenever it is read, or an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from penstock.kinesis.read.client import SILENCE, ReadRecord, Start
from penstock.kinesis.read.errors import RecordsExpired
from penstock.kinesis.read.reach import Pages
from penstock.kinesis.read.retention import LEAST
from penstock.kinesis.read.stream_offset import ReadRange

_EDGE: Final = LEAST - timedelta(hours=1)
"""A record of this age may expire while the range that it begins is read."""

Lose = Callable[[str], None]


def _now() -> datetime:
    return datetime.now(UTC)


def read_range(
    client: Pages, part: ReadRange, lose: Lose, *, now: Callable[[], datetime] = _now
) -> Iterator[list[ReadRecord]]:
    """The records, a list a page.

    1. A range ends with a number at or behind its last, or where a closed shard ends. An empty page is no
       end. Where nothing more comes and the last is still missing, records are lost.
    2. Records expire in order. So if the first one is still there when the last was read, none of them
       expired on the way. That is asked only of one that is old.

    `lose` is called with a sentence if records have expired since the range was found, or may have. If it
    returns, what is left of the range is read.
    """
    first: ReadRecord | None = None
    last_read: int | None = None
    silence = 0
    for page in client.pages(part.shard_id, Start.at(part.first)):
        records = page.records
        silence = silence + 1 if not records and page.behind_ms == 0 else 0
        if records and last_read is None:
            if records[0].sequence == part.first:
                first = records[0]
            else:
                lose(_expired(part, f"the oldest that is left is {records[0].sequence}"))
        if records:
            last_read = records[-1].sequence
        wanted = [record for record in records if part.last is None or record.sequence <= part.last]
        if wanted:
            yield wanted
        if _is_read(part, last_read):
            break
        # A closed shard says where it ends.
        if page.is_last or (part.last is not None and silence >= SILENCE):
            if last_read is None:
                lose(_expired(part, "nothing is left"))
            elif part.last is not None:
                lose(_expired(part, f"nothing comes behind {last_read}"))
            break
    if first is not None and now() - first.arrived > _EDGE and not _is_there(client, part):
        lose(_expired(part, "the first was there when they were read, and was gone at the end"))


def _is_read(part: ReadRange, last_read: int | None) -> bool:
    return part.last is not None and last_read is not None and last_read >= part.last


def _is_there(client: Pages, part: ReadRange) -> bool:
    """Whether the first record of a range is still there."""
    silence = 0
    try:
        for page in client.pages(part.shard_id, Start.at(part.first), most=1):
            if page.records:
                return page.records[0].sequence == part.first
            silence = silence + 1 if page.behind_ms == 0 else 0
            if silence >= SILENCE:
                break
    except RecordsExpired:
        pass
    return False


def _expired(part: ReadRange, rest: str) -> str:
    end = "the shard's end" if part.last is None else str(part.last)
    return f"shard {part.shard_id}: of the records {part.first} to {end} some expired unread; {rest}"

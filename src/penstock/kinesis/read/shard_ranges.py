"""The records of a range that was fixed before: the same whenever it is read, or an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from penstock.kinesis.read.client import ReadRecord, Start
from penstock.kinesis.read.reach import Pages
from penstock.kinesis.read.stream_offset import ReadRange


def read_range(client: Pages, part: ReadRange, lose: Callable[[str], None]) -> Iterator[list[ReadRecord]]:
    """The records, a list a page.

    `lose` is called with a sentence if records have expired since the range was found. If it returns, what is
    left of the range is read.
    """
    is_begun = False
    for page in client.pages(part.shard_id, Start.at(part.first)):
        records = page.records
        is_end = page.is_last or (not records and page.behind_ms == 0)
        if not is_begun and (records or is_end):
            is_begun = True
            if not records or records[0].sequence != part.first:
                lose(_expired(part, records[0].sequence if records else None))
        wanted = [record for record in records if part.last is None or record.sequence <= part.last]
        if wanted:
            yield wanted
        if page.is_last or (part.last is not None and records and records[-1].sequence >= part.last):
            return
        # The whole range has expired, and nothing came behind it.
        if is_end and part.last is not None and not wanted:
            return


def _expired(part: ReadRange, left: int | None) -> str:
    end = "the shard's end" if part.last is None else str(part.last)
    rest = "nothing is left" if left is None else f"the oldest that is left is {left}"
    return f"shard {part.shard_id}: of the records {part.first} to {end} some expired unread; {rest}"

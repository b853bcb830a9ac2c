"""What PutRecords answers, made by hand."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.kinesis.aws.outcome import Accepted, Answered, Entry, Taken

SHARD = "shardId-000000000000"


def entries(codes: Sequence[str | None]) -> list[Entry]:
    """An error code, or None for a record that was taken; those stand in one shard, in order."""
    return [
        Entry(shard=SHARD, sequence=str(10**20 + place)) if code is None else Entry(error=code)
        for place, code in enumerate(codes)
    ]


def accepted(sent: Sequence[object]) -> Accepted:
    """All of them were taken."""
    return Accepted(Taken.of(entries([None] * len(sent))))


def answered(codes: Sequence[str | None]) -> Answered:
    """Some of them failed."""
    return Answered(entries(codes))

"""A PutRecords responder that does as little as possible, in a process of its own.

It takes every record, keeps none (unless asked to keep whole requests or the first record of each), and
answers as Kinesis does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
import urllib.request
from typing import Any, Literal, get_args

from penstock.bench.answering import Answer, AnsweringProcess, serve

_MOST_RECORDS = 500
_NUMBER_OF_ANSWER = b"############"
_RECORDS = [
    b'{"SequenceNumber":"49543463076570308322303623326179887152%b%06d","ShardId":"shardId-0"}'
    % (_NUMBER_OF_ANSWER, place)
    for place in range(_MOST_RECORDS)
]
_OTHER = b"{}"

Keep = Literal["none", "first", "all"]


class _Tally:
    def __init__(self, *, keep: Keep) -> None:
        self.keep = keep
        self.records = 0
        self.requests = 0
        self.first_at = 0.0
        self.last_at = 0.0
        self.kept: list[tuple[float, str]] = []

    def count(self, body: bytes) -> int:
        records = body.count(b'"PartitionKey":')
        now = time.time()
        self.first_at = self.first_at or now
        self.last_at = now
        self.records += records
        self.requests += 1
        if self.keep == "all":
            self.kept.append((now, body.decode()))
        elif self.keep == "first":
            self.kept.append((now, body.partition(b'"Data":"')[2].partition(b'"')[0].decode()))
        return records

    def report(self) -> bytes:
        names = ("records", "requests", "first_at", "last_at", "kept")
        return json.dumps({name: getattr(self, name) for name in names}).encode()


def _answers(tally: _Tally) -> Answer:
    def answer(head: bytes, body: bytes) -> bytes:
        if b"kinesis_20131202.putrecords" in head:
            records = b",".join(_RECORDS[: tally.count(body)])
            return b'{"FailedRecordCount":0,"Records":[' + numbered(records) + b"]}"
        if b"kinesis_20131202.putrecord" in head:
            tally.requests += 1
            return numbered(_RECORDS[0])
        return tally.report() if head.startswith(b"get /report") else _OTHER

    def numbered(records: bytes) -> bytes:
        """Sequence numbers ascend within an answer and from one to the next, as a shard's do."""
        return records.replace(_NUMBER_OF_ANSWER, b"%012d" % tally.requests)

    return answer


class Responder(AnsweringProcess):
    """The responder as a child process."""

    def __init__(self, *, keep: Keep = "none") -> None:
        super().__init__("penstock.bench.responder", "--keep", keep)

    def report(self) -> dict[str, Any]:
        """Counts and times of what has come so far."""
        with urllib.request.urlopen(f"{self.url}/report") as answer:  # noqa: S310 - our own child
            report: dict[str, Any] = json.load(answer)
        return report


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--keep", choices=get_args(Keep), default="none")
    asyncio.run(serve(_answers(_Tally(keep=parser.parse_args().keep))))

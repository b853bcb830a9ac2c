"""A PutRecords responder that does as little as possible, in a process of its own.

It takes every record, keeps none (unless asked to keep whole requests or the first record of each), and
answers as Kinesis does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
import urllib.request
from types import TracebackType
from typing import Any, Literal, Self, get_args

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-amz-json-1.1\r\nContent-Length: %d\r\n\r\n"
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


class _Connection(asyncio.Protocol):
    def __init__(self, tally: _Tally) -> None:
        self._tally = tally
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (head_end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._buffer[:head_end]).lower()
            length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
            end = head_end + 4 + length
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[head_end + 4 : end])
            del self._buffer[:end]
            self._transport.write(self._answer(head, body))

    def _answer(self, head: bytes, body: bytes) -> bytes:
        if b"kinesis_20131202.putrecords" in head:
            records = b",".join(_RECORDS[: self._tally.count(body)])
            answer = b'{"FailedRecordCount":0,"Records":[' + self._numbered(records) + b"]}"
        elif b"kinesis_20131202.putrecord" in head:
            self._tally.requests += 1
            answer = self._numbered(_RECORDS[0])
        elif head.startswith(b"get /report"):
            answer = self._tally.report()
        else:
            answer = _OTHER
        return _HEAD % len(answer) + answer

    def _numbered(self, records: bytes) -> bytes:
        """Sequence numbers ascend within an answer and from one to the next, as a shard's do."""
        return records.replace(_NUMBER_OF_ANSWER, b"%012d" % self._tally.requests)


async def _serve(*, keep: Keep) -> None:
    loop = asyncio.get_running_loop()
    tally = _Tally(keep=keep)
    server = await loop.create_server(lambda: _Connection(tally), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    # Ends with its parent, whose end of the pipe closes however it ends.
    await loop.run_in_executor(None, sys.stdin.buffer.read)
    server.close()


class Responder:
    """The responder as a child process."""

    def __init__(self, *, keep: Keep = "none") -> None:
        self._keep = keep

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "penstock.bench.responder", "--keep", self._keep]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End it: from now on connections are refused."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()

    def report(self) -> dict[str, Any]:
        """Counts and times of what has come so far."""
        with urllib.request.urlopen(f"{self.url}/report") as answer:  # noqa: S310 - our own child
            report: dict[str, Any] = json.load(answer)
        return report


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--keep", choices=get_args(Keep), default="none")
    asyncio.run(_serve(keep=parser.parse_args().keep))

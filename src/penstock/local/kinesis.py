"""A private Kinesis on this machine, for tests, the demo and the bench.

`python -m penstock.local.kinesis --port 4567` runs one by hand.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import botocore.session
from botocore.config import Config

import penstock
from penstock.local.errors import LocalServerError

ACCESS_KEY_ID = "local"
SECRET_ACCESS_KEY = "local-secret"  # noqa: S105 (an emulator's)

_START_S = 60.0
_NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """One record as a reader of the stream sees it."""

    shard_id: str
    sequence_number: str
    partition_key: str
    data: bytes


class LocalKinesis:
    """moto's Kinesis in a process of its own, which ends with this one."""

    def __init__(self, *, region: str = "eu-west-1", max_record_bytes: int = 1024 * 1024) -> None:
        self.region = region
        self._max_record_bytes = max_record_bytes
        self._process: subprocess.Popen[str] | None = None
        self._client: Any = None
        self._port = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def endpoint_url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """The emulator's process id."""
        if self._process is None:
            raise LocalServerError("this Kinesis is not running")
        return self._process.pid

    @property
    def client(self) -> Any:
        """A botocore client for it."""
        if self._client is None:
            raise LocalServerError("this Kinesis is not running")
        return self._client

    def start(self) -> None:
        """Start the emulator; return when it listens."""
        if self._process is not None:
            raise LocalServerError("this Kinesis is already running")
        # -P: a file of the current directory that is named like a module must not take its place.
        command = [
            sys.executable,
            "-P",
            "-m",
            "penstock.local.kinesis",
            "--port",
            "0",
            "--until-stdin-closes",
        ]
        self._process = subprocess.Popen(
            [*command, "--max-record-bytes", str(self._max_record_bytes)],
            env={**os.environ, "PYTHONPATH": str(Path(penstock.__file__).parents[1])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.close()
            raise LocalServerError(
                "the Kinesis emulator did not start; it needs: pip install 'penstock[demo]'"
            )
        self._port = int(line)
        self._client = _client(self.endpoint_url, self.region)

    def close(self) -> None:
        """End the emulator; its streams are gone."""
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def env(self) -> dict[str, str]:
        """The variables with which an AWS client finds this Kinesis and nothing else."""
        return {
            "AWS_ENDPOINT_URL_KINESIS": self.endpoint_url,
            "AWS_REGION": self.region,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET_ACCESS_KEY,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def create_stream(self, name: str, shards: int = 1) -> None:
        """Create a stream and wait until it is ACTIVE."""
        self.client.create_stream(StreamName=name, ShardCount=shards)
        deadline = time.monotonic() + _START_S
        while self._status(name) != "ACTIVE":
            if time.monotonic() > deadline:
                raise LocalServerError(f"stream {name} is {self._status(name)}, not ACTIVE")
            time.sleep(0.02)

    def delete_stream(self, name: str) -> None:
        """Delete a stream with its records."""
        self.client.delete_stream(StreamName=name)

    def expire(self, stream: str, before: float) -> None:
        """Let retention pass what arrived before a time (time.time), and emptied closed shards."""
        scope = f"Credential={ACCESS_KEY_ID}/20260101/{self.region}/kinesis/aws4_request"
        request = urllib.request.Request(  # noqa: S310 (it is http, to ourselves)
            self.endpoint_url,
            json.dumps({"StreamName": stream, "Before": before}).encode(),
            {"X-Amz-Target": "Penstock.Expire", "Authorization": f"AWS4-HMAC-SHA256 {scope}, Signature=0"},
        )
        with _NO_PROXY.open(request) as answer:
            answer.read()

    def read_all(self, stream: str) -> list[StoredRecord]:
        """Every record that the stream holds now: shard after shard, in sequence order within each."""
        shards = [shard["ShardId"] for shard in self.client.list_shards(StreamName=stream)["Shards"]]
        with ThreadPoolExecutor(len(shards)) as readers:
            parts = readers.map(lambda shard: list(self._read_shard(stream, shard)), shards)
        return [record for part in parts for record in part]

    def _read_shard(self, stream: str, shard: str) -> Iterator[StoredRecord]:
        iterator = self.client.get_shard_iterator(
            StreamName=stream, ShardId=shard, ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        # MillisBehindLatest can't be trusted in an emulator, but here an empty page means the end. A closed
        # shard says so itself.
        while iterator is not None:
            answer = self.client.get_records(ShardIterator=iterator, Limit=10_000)
            for record in answer["Records"]:
                yield StoredRecord(shard, record["SequenceNumber"], record["PartitionKey"], record["Data"])
            iterator = answer.get("NextShardIterator") if answer["Records"] else None

    def _status(self, stream: str) -> str:
        summary = self.client.describe_stream_summary(StreamName=stream)
        return str(summary["StreamDescriptionSummary"]["StreamStatus"])


def _client(endpoint_url: str, region: str) -> Any:
    session = botocore.session.Session()
    # Parsing a timestamp costs more than all the rest of a record, and nobody reads it here.
    session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=float)
    return session.create_client(
        "kinesis",
        region_name=region,
        endpoint_url=endpoint_url,
        aws_access_key_id=ACCESS_KEY_ID,
        aws_secret_access_key=SECRET_ACCESS_KEY,
        config=Config(max_pool_connections=32, retries={"total_max_attempts": 1}, proxies={}),
    )


def main() -> None:
    """Run the emulator in this process."""
    parser = argparse.ArgumentParser(prog="python -m penstock.local.kinesis", description=main.__doc__)
    parser.add_argument("--port", type=int, required=True, help="0: any; the port is printed")
    parser.add_argument("--max-record-bytes", type=int, default=1024 * 1024)
    parser.add_argument("--until-stdin-closes", action="store_true", help="end when standard input does")
    options = parser.parse_args()
    try:
        from penstock.local.kinesis_emulator import serve  # moto: only the emulator's own process pays for it
    except ImportError as missing:
        sys.exit(f"the Kinesis emulator can't be loaded: {missing}")

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(
            serve(
                options.port,
                max_record_bytes=options.max_record_bytes,
                until_stdin_closes=options.until_stdin_closes,
            )
        )


if __name__ == "__main__":
    main()

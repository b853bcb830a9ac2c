"""The process behind LocalKinesis: moto's Kinesis, made safe and quick enough to load.

moto keeps the streams and answers every call but PutRecords and GetRecords. Those are answered here, on
moto's own shards, because moto
- loses records when two requests write to one shard at once: both take the same sequence number,
- walks over all records of a shard for each record put, and spends milliseconds on each page read,
- goes on writing to shards that were closed by a split or a merge,
- still refuses requests over 5 MiB, where Kinesis now takes 10.
"""

from __future__ import annotations

import base64
import hashlib
import io
import sys
import threading
import time
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
from moto.core.exceptions import JsonRESTError
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.kinesis.exceptions import InvalidArgumentError
from moto.kinesis.models import KinesisBackend, Record, Shard, Stream, kinesis_backends
from moto.kinesis.utils import compose_shard_iterator, decompose_shard_iterator
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

MAX_REQUEST_BYTES = 10 * 1024 * 1024
MAX_REQUEST_RECORDS = 500
MAX_PAGE_RECORDS = 10_000

_PUT_RECORDS = "Kinesis_20131202.PutRecords"
_GET_RECORDS = "Kinesis_20131202.GetRecords"
_JSON = "application/x-amz-json-1.1"
_WRITING = threading.Lock()


class _Invalid(JsonRESTError):
    def __init__(self, message: str) -> None:
        super().__init__("ValidationException", f"1 validation error detected: {message}")


class KinesisApplication:
    """A WSGI application: PutRecords and GetRecords here, all else by moto."""

    def __init__(self, max_record_bytes: int) -> None:
        self._max_record_bytes = max_record_bytes
        self._moto = DomainDispatcherApplication(create_backend_app)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        # Whatever comes of the request, its body must not stay behind on a connection that is kept alive.
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        backend, target = _backend(environ), environ.get("HTTP_X_AMZ_TARGET")
        if backend is None or target not in (_PUT_RECORDS, _GET_RECORDS):
            answer: Iterable[bytes] = self._moto({**environ, "wsgi.input": io.BytesIO(body)}, start_response)
            return answer
        serve = self._put_records if target == _PUT_RECORDS else _get_records
        status = "200 OK"
        try:
            content = msgspec.json.encode(serve(backend, msgspec.json.decode(body)))
        except JsonRESTError as refusal:
            status, content = "400 Bad Request", str(refusal.description).encode()
        start_response(status, [("Content-Type", _JSON), ("Content-Length", str(len(content)))])
        return [content]

    def _put_records(self, backend: KinesisBackend, request: dict[str, Any]) -> dict[str, Any]:
        stream = backend.describe_stream(request.get("StreamARN"), request.get("StreamName"))
        records = request["Records"]
        self._check_sizes(records)
        arrived = time.time()
        with _WRITING:
            placed = []
            for record in records:
                shard = _shard_for(stream, record)
                number = _append(shard, record, arrived)
                placed.append({"SequenceNumber": str(number), "ShardId": shard.shard_id})
        return {"FailedRecordCount": 0, "Records": placed}

    def _check_sizes(self, records: list[dict[str, Any]]) -> None:
        if not 1 <= len(records) <= MAX_REQUEST_RECORDS:
            raise _Invalid(
                f"Value at 'records' failed to satisfy constraint: Member must have length between 1 and "
                f"{MAX_REQUEST_RECORDS}, inclusive"
            )
        sizes = [len(base64.b64decode(r["Data"])) + len(r["PartitionKey"].encode()) for r in records]
        if sum(sizes) > MAX_REQUEST_BYTES:
            raise InvalidArgumentError("Records size exceeds 10 MB limit")
        for place, size in enumerate(sizes, start=1):
            if size > self._max_record_bytes:
                raise _Invalid(
                    f"Value at 'records.{place}.member.data' failed to satisfy constraint: Member must have "
                    f"length less than or equal to {self._max_record_bytes}"
                )


def _shard_for(stream: Stream, record: dict[str, Any]) -> Shard:
    explicit = record.get("ExplicitHashKey")
    digest = hashlib.md5(record["PartitionKey"].encode(), usedforsecurity=False).digest()
    place = int(explicit) if explicit else int.from_bytes(digest)
    shards = (shard for shard in stream.shards.values() if shard.is_open)
    return next(shard for shard in shards if shard.starting_hash <= place <= shard.ending_hash)


def _append(shard: Shard, record: dict[str, Any], arrived: float) -> int:
    number = len(shard.records) + 1  # a shard numbers its records from 1, without gaps
    # All that moto reads of a record when a shard is split, merged or searched by time; its own class keeps a
    # list of every record ever made, those of deleted streams too.
    stored = SimpleNamespace(
        partition_key=record["PartitionKey"],
        explicit_hash_key=record.get("ExplicitHashKey"),
        data=record["Data"],
        sequence_number=number,
        created_at=arrived,
    )
    shard.records[number] = cast("Record", stored)
    return number


def _get_records(backend: KinesisBackend, request: dict[str, Any]) -> dict[str, Any]:
    stream_name, shard_id, after = decompose_shard_iterator(request["ShardIterator"])
    shard = backend.describe_stream(request.get("StreamARN"), stream_name).get_shard(shard_id)
    held = len(shard.records)
    last = max(int(after), min(held, int(after) + request.get("Limit", MAX_PAGE_RECORDS)))
    page = [shard.records[number] for number in range(int(after) + 1, last + 1)]
    behind_s = shard.records[held].created_at - page[-1].created_at if page else 0.0
    return {
        "Records": [
            {
                "Data": record.data,
                "PartitionKey": record.partition_key,
                "SequenceNumber": str(record.sequence_number),
                "ApproximateArrivalTimestamp": record.created_at,
            }
            for record in page
        ],
        "NextShardIterator": compose_shard_iterator(stream_name, shard, last),
        "MillisBehindLatest": int(behind_s * 1000),
    }


def _backend(environ: dict[str, Any]) -> KinesisBackend | None:
    """The backend of the region that the request was signed for; None if it was not signed for Kinesis."""
    scope = environ.get("HTTP_AUTHORIZATION", "").partition("Credential=")[2].split(",")[0].split("/")
    if len(scope) != 5 or scope[3] != "kinesis":
        return None
    return kinesis_backends[DEFAULT_ACCOUNT_ID][scope[2]]


class _Handler(WSGIRequestHandler):
    """Keeps connections alive, as Kinesis does, and keeps quiet."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def send_header(self, keyword: str, value: str) -> None:
        # werkzeug closes each connection, lest an application leave a body unread; ours reads them all.
        # And moto sends a Server header of its own: strict clients refuse a second one.
        if (keyword, value) != ("Connection", "close") and keyword != "Server":
            super().send_header(keyword, value)

    def log(self, *_: Any) -> None:
        """Say nothing: a line a request would drown the output of tests."""


def serve(port: int, *, max_record_bytes: int, until_stdin_closes: bool) -> None:
    """Serve on 127.0.0.1 (port 0: any), print the port, and end with standard input if that is asked for."""
    server = make_server(
        "127.0.0.1", port, KinesisApplication(max_record_bytes), threaded=True, request_handler=_Handler
    )
    if until_stdin_closes:

        def end_with_parent() -> None:
            sys.stdin.read()
            server.shutdown()

        threading.Thread(target=end_with_parent, daemon=True).start()
    print(server.port, flush=True)
    server.serve_forever()

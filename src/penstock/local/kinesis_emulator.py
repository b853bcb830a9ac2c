"""The process behind LocalKinesis: moto's Kinesis, made safe and quick enough to load.

moto keeps the streams and answers every control call. The two calls that carry records are answered here,
on moto's own shards, because moto
- loses records when two requests write to one shard at once: both take the same sequence number,
- walks over all records of a shard for each record put, and spends milliseconds on each page read,
- still refuses requests over 5 MiB, where Kinesis now takes 10.
"""

from __future__ import annotations

import base64
import sys
import threading
import time
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import msgspec
from moto.core import DEFAULT_ACCOUNT_ID
from moto.core.exceptions import JsonRESTError
from moto.kinesis.exceptions import InvalidArgumentError
from moto.kinesis.models import KinesisBackend, Shard, kinesis_backends
from moto.kinesis.utils import compose_shard_iterator, decompose_shard_iterator
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

MAX_REQUEST_BYTES = 10 * 1024 * 1024
MAX_REQUEST_RECORDS = 500
MAX_PAGE_RECORDS = 10_000

_WRITING = threading.Lock()


class _Invalid(JsonRESTError):  # type: ignore[misc]
    def __init__(self, message: str) -> None:
        super().__init__("ValidationException", f"1 validation error detected: {message}")


class KinesisApplication:
    """A WSGI application: PutRecords and GetRecords here, all else by moto."""

    def __init__(self, max_record_bytes: int) -> None:
        self._max_record_bytes = max_record_bytes
        self._moto = DomainDispatcherApplication(create_backend_app)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        target = environ.get("HTTP_X_AMZ_TARGET", "")
        backend = _backend(environ)
        if backend is None or target not in ("Kinesis_20131202.PutRecords", "Kinesis_20131202.GetRecords"):
            answer: Iterable[bytes] = self._moto(environ, start_response)
            return answer
        request = msgspec.json.decode(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
        status = "200 OK"
        try:
            if target.endswith("PutRecords"):
                body = msgspec.json.encode(self._put_records(backend, request))
            else:
                body = msgspec.json.encode(_get_records(backend, request))
        except JsonRESTError as refusal:
            status, body = "400 Bad Request", str(refusal.description).encode()
        start_response(
            status,
            [("Content-Type", "application/x-amz-json-1.1"), ("Content-Length", str(len(body)))],
        )
        return [body]

    def _put_records(self, backend: KinesisBackend, request: dict[str, Any]) -> dict[str, Any]:
        stream = backend.describe_stream(request.get("StreamARN"), request.get("StreamName"))
        records = request["Records"]
        self._check_sizes(records)
        arrived = time.time()
        with _WRITING:
            placed = []
            for record in records:
                key, hash_key = record["PartitionKey"], record.get("ExplicitHashKey")
                shard = stream.get_shard_for_key(key, hash_key)
                number = _append(shard, key, hash_key, record["Data"], arrived)
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


def _append(shard: Shard, key: str, hash_key: str | None, data: str, arrived: float) -> int:
    number: int = next(reversed(shard.records), 0) + 1
    # What moto itself reads of a record when a shard is split, merged or looked up by time.
    shard.records[number] = SimpleNamespace(
        partition_key=key, explicit_hash_key=hash_key, data=data, sequence_number=number, created_at=arrived
    )
    return number


def _get_records(backend: KinesisBackend, request: dict[str, Any]) -> dict[str, Any]:
    stream_name, shard_id, after = decompose_shard_iterator(request["ShardIterator"])
    shard = backend.describe_stream(request.get("StreamARN"), stream_name).get_shard(shard_id)
    first = int(after) + 1
    last = next(reversed(shard.records), 0)
    page = range(first, min(last, int(after) + request.get("Limit", MAX_PAGE_RECORDS)) + 1)
    return {
        "Records": [
            {
                "Data": shard.records[number].data,
                "PartitionKey": shard.records[number].partition_key,
                "SequenceNumber": str(number),
                "ApproximateArrivalTimestamp": shard.records[number].created_at,
            }
            for number in page
        ],
        "NextShardIterator": compose_shard_iterator(stream_name, shard, page[-1] if page else int(after)),
        "MillisBehindLatest": int(
            (shard.records[last].created_at - shard.records[page[-1]].created_at) * 1000
        )
        if page
        else 0,
    }


def _backend(environ: dict[str, Any]) -> KinesisBackend | None:
    """The backend of the region that the request was signed for; None if it was not signed for Kinesis."""
    scope = environ.get("HTTP_AUTHORIZATION", "").partition("Credential=")[2].split(",")[0].split("/")
    if len(scope) != 5 or scope[3] != "kinesis":
        return None
    return kinesis_backends[DEFAULT_ACCOUNT_ID][scope[2]]


class _QuietHandler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"  # connections are kept alive, as Kinesis does
    disable_nagle_algorithm = True

    def log(self, *_: Any) -> None:
        """Say nothing: a line a request would drown the output of tests."""


def serve(port: int, *, max_record_bytes: int, until_stdin_closes: bool) -> None:
    """Serve on 127.0.0.1 (port 0: any) and print the port; with `until_stdin_closes`, end when the parent does."""
    server = make_server(
        "127.0.0.1", port, KinesisApplication(max_record_bytes), threaded=True, request_handler=_QuietHandler
    )
    if until_stdin_closes:

        def end_with_parent() -> None:
            sys.stdin.read()
            server.shutdown()

        threading.Thread(target=end_with_parent, daemon=True).start()
    print(server.port, flush=True)
    server.serve_forever()

"""The process behind LocalKinesis: moto's Kinesis, made safe and quick enough to load.

moto keeps the streams and answers every call but those that put and find and get records, split and merge
shards. These are answered here, on moto's own shards, because moto
- loses records when two requests write to one shard at once: both take the same sequence number,
- walks over all records of a shard for each record put, and spends milliseconds on each page read,
- goes on writing to shards that were closed by a split or a merge, moves their records to the new ones, and
  lets readers of a closed shard wait for ever,
- numbers each stream's records from 1, so that a stream that was deleted and created again takes the numbers
  of the former one for its own,
- still refuses requests over 5 MiB, where Kinesis now takes 10.

Retention is a call of our own: `Penstock.Expire` takes what arrived before a time out of a stream.

One event loop serves all connections, so that no two writes meet, and keeps them alive as Kinesis does.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import msgspec
from aiohttp import web
from moto.core.exceptions import JsonRESTError
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.kinesis.exceptions import InvalidArgumentError
from moto.kinesis.models import KinesisBackend, Record, Shard, Stream, kinesis_backends
from moto.kinesis.utils import compose_shard_iterator, decompose_shard_iterator
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.test import Client

from penstock.local.kinesis_numbers import numbers_of

MAX_REQUEST_BYTES = 10 * 1024 * 1024
MAX_REQUEST_RECORDS = 500
MAX_PAGE_RECORDS = 10_000

EXPIRE = "Penstock.Expire"
_TARGET = "Kinesis_20131202."
_JSON = "application/x-amz-json-1.1"


class _Invalid(JsonRESTError):
    def __init__(self, message: str) -> None:
        super().__init__("ValidationException", f"1 validation error detected: {message}")


class Emulator:
    """Answers Kinesis' JSON calls: those about records and resharding itself, all else through moto."""

    def __init__(self, max_record_bytes: int) -> None:
        self._max_record_bytes = max_record_bytes
        self._moto = Client(DomainDispatcherApplication(create_backend_app))
        self._own: dict[str, Callable[[KinesisBackend, dict[str, Any]], dict[str, Any]]] = {
            f"{_TARGET}PutRecords": self._put_records,
            f"{_TARGET}PutRecord": self._put_record,
            f"{_TARGET}GetRecords": _get_records,
            f"{_TARGET}GetShardIterator": _get_shard_iterator,
            f"{_TARGET}SplitShard": _split_shard,
            f"{_TARGET}MergeShards": _merge_shards,
            EXPIRE: _expire,
        }

    async def handle(self, request: web.BaseRequest) -> web.Response:
        """Answer one request."""
        try:
            body = await request.content.read()
        except ConnectionError:
            return web.Response(status=400)  # a client that was killed in mid-request hears no answer anyway
        backend, serve = _backend(request), self._own.get(request.headers.get("X-Amz-Target", ""))
        if backend is None or serve is None:
            return self._ask_moto(request, body)
        try:
            content = msgspec.json.encode(serve(backend, msgspec.json.decode(body)))
        except JsonRESTError as refusal:
            return web.Response(status=400, text=str(refusal.description), content_type=_JSON)
        return web.Response(body=content, content_type=_JSON)

    def _ask_moto(self, request: web.BaseRequest, body: bytes) -> web.Response:
        answer = self._moto.open(
            request.path_qs, method=request.method, headers=list(request.headers.items()), data=body
        )
        return web.Response(status=answer.status_code, body=answer.get_data(), content_type=_JSON)

    def _put_record(self, backend: KinesisBackend, request: dict[str, Any]) -> dict[str, Any]:
        placed: dict[str, Any] = self._put_records(backend, {**request, "Records": [request]})["Records"][0]
        return placed

    def _put_records(self, backend: KinesisBackend, request: dict[str, Any]) -> dict[str, Any]:
        stream = _stream(backend, request)
        records = request["Records"]
        self._check_sizes(records)
        arrived = time.time()
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


def _stream(backend: KinesisBackend, request: dict[str, Any]) -> Stream:
    return backend.describe_stream(request.get("StreamARN"), request.get("StreamName"))


def _split_shard(backend: KinesisBackend, request: dict[str, Any]) -> dict[str, Any]:
    with _kept_in_place(_stream(backend, request), request["ShardToSplit"]):
        backend.split_shard(
            request.get("StreamARN", ""),
            request.get("StreamName", ""),
            request["ShardToSplit"],
            request["NewStartingHashKey"],
        )
    return {}


def _merge_shards(backend: KinesisBackend, request: dict[str, Any]) -> dict[str, Any]:
    merged = request["ShardToMerge"], request["AdjacentShardToMerge"]
    with _kept_in_place(_stream(backend, request), *merged):
        backend.merge_shards(request.get("StreamARN", ""), request.get("StreamName", ""), *merged)
    return {}


@contextmanager
def _kept_in_place(stream: Stream, *shard_ids: str) -> Iterator[None]:
    """What was written before stays where it is: moto finds nothing to move."""
    shards = [stream.shards[shard_id] for shard_id in shard_ids if shard_id in stream.shards]
    held = [shard.records for shard in shards]
    for shard in shards:
        shard.records = OrderedDict()
    try:
        yield
    finally:
        for shard, records in zip(shards, held, strict=True):
            shard.records = records


def _shard_for(stream: Stream, record: dict[str, Any]) -> Shard:
    explicit = record.get("ExplicitHashKey")
    digest = hashlib.md5(record["PartitionKey"].encode(), usedforsecurity=False).digest()
    place = int(explicit) if explicit else int.from_bytes(digest)
    shards = (shard for shard in stream.shards.values() if shard.is_open)
    return next(shard for shard in shards if shard.starting_hash <= place <= shard.ending_hash)


def _append(shard: Shard, record: dict[str, Any], arrived: float) -> int:
    numbers = numbers_of(shard)
    numbers.last += 1
    # All that moto reads of a record when a shard is split, merged or searched by time; its own class keeps a
    # list of every record ever made, those of deleted streams too.
    stored = SimpleNamespace(
        partition_key=record["PartitionKey"],
        explicit_hash_key=record.get("ExplicitHashKey"),
        data=record["Data"],
        sequence_number=numbers.last,
        created_at=arrived,
    )
    shard.records[numbers.last] = cast("Record", stored)
    return numbers.last


def _get_shard_iterator(backend: KinesisBackend, request: dict[str, Any]) -> dict[str, Any]:
    stream, shard_id, kind = _stream(backend, request), request["ShardId"], request["ShardIteratorType"]
    number = request.get("StartingSequenceNumber")
    if number is not None and not numbers_of(stream.get_shard(shard_id)).knows(int(number)):
        raise InvalidArgumentError(
            f"StartingSequenceNumber {number} used in GetShardIterator on shard {shard_id} in stream"
            f" {stream.stream_name} under account {DEFAULT_ACCOUNT_ID} is invalid because it did not come"
            " from this stream."
        )
    # As they came: moto's own names for their types are wrong.
    place = cast("tuple[Any, Any]", (number, request.get("Timestamp")))
    return {"ShardIterator": backend.get_shard_iterator(None, stream.stream_name, shard_id, kind, *place)}


def _get_records(backend: KinesisBackend, request: dict[str, Any]) -> dict[str, Any]:
    stream_name, shard_id, behind = decompose_shard_iterator(request["ShardIterator"])
    shard = backend.describe_stream(request.get("StreamARN"), stream_name).get_shard(shard_id)
    held = numbers_of(shard).last
    after = max(int(behind), held - len(shard.records))
    last = max(after, min(held, after + request.get("Limit", MAX_PAGE_RECORDS)))
    page = [shard.records[number] for number in range(after + 1, last + 1)]
    behind_s = shard.records[held].created_at - page[-1].created_at if page else 0.0
    answer: dict[str, Any] = {
        "Records": [
            {
                "Data": record.data,
                "PartitionKey": record.partition_key,
                "SequenceNumber": str(record.sequence_number),
                "ApproximateArrivalTimestamp": record.created_at,
            }
            for record in page
        ],
        "MillisBehindLatest": int(behind_s * 1000),
    }
    # A closed shard ends with its last records, or with an empty page behind them: readers must bear both.
    ends_later = bool(page) and held % 2 == 1
    if shard.is_open or last < held or ends_later:
        answer["NextShardIterator"] = compose_shard_iterator(stream_name, shard, last)
    return answer


def _expire(backend: KinesisBackend, request: dict[str, Any]) -> dict[str, Any]:
    stream = _stream(backend, request)
    for shard_id, shard in list(stream.shards.items()):
        kept = [record for record in shard.records.values() if record.created_at >= request["Before"]]
        shard.records = OrderedDict((record.sequence_number, record) for record in kept)
        if not kept and not shard.is_open:
            del stream.shards[shard_id]
    return {}


def _backend(request: web.BaseRequest) -> KinesisBackend | None:
    """The backend of the region that the request was signed for; None if it was not signed for Kinesis."""
    authorization = request.headers.get("Authorization", "")
    scope = authorization.partition("Credential=")[2].split(",")[0].split("/")
    if len(scope) != 5 or scope[3] != "kinesis":
        return None
    return kinesis_backends[DEFAULT_ACCOUNT_ID][scope[2]]


async def serve(port: int, *, max_record_bytes: int, until_stdin_closes: bool) -> None:
    """Serve on 127.0.0.1 (port 0: any), print the port, and end with standard input if that is asked for."""
    http = web.Server(Emulator(max_record_bytes).handle, access_log=None)
    listener = await asyncio.get_running_loop().create_server(http, "127.0.0.1", port)
    print(listener.sockets[0].getsockname()[1], flush=True)
    if until_stdin_closes:
        await asyncio.to_thread(sys.stdin.read)
    else:
        await asyncio.Event().wait()

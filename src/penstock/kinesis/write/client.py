"""PutRecords with bodies built by hand and signed by botocore.

boto3 spends seven times the CPU on the same request (docs/dependencies.md); credentials, endpoints and
signing are still botocore's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from http.client import HTTPException
from typing import Any, Final, NamedTuple

import msgspec
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest

from penstock.kinesis.aws.credentials import CredentialKeeper
from penstock.kinesis.aws.outcome import (
    STREAM_FAULT_CODES,
    Accepted,
    Answered,
    Entry,
    Failed,
    MarkResult,
    Placed,
    Refused,
    Result,
    Taken,
    Unsent,
    classify_error,
    is_in_order,
)
from penstock.kinesis.aws.session import Endpoints, ca_bundle_of, one_line, open_session
from penstock.kinesis.aws.transport import HttpAnswer, Transport, open_transport
from penstock.kinesis.write.event import ChangeEvent

_JSON: Final = "application/x-amz-json-1.1"
# Bytes become base64 by it, a whole request at once: record by record that costs more than twice as much.
_encode = msgspec.json.Encoder().encode


class _PutRecordsAnswer(msgspec.Struct, gc=False):
    Records: list[Entry]


class _ErrorAnswer(msgspec.Struct, gc=False):
    type: str = msgspec.field(default="", name="__type")
    message: str = ""
    Message: str = ""


class _SummaryAnswer(msgspec.Struct, gc=False):
    StreamDescriptionSummary: dict[str, Any] = {}


_decode_summary = msgspec.json.Decoder(_SummaryAnswer).decode
_decode_answer = msgspec.json.Decoder(_PutRecordsAnswer).decode
_decode_entry = msgspec.json.Decoder(Entry).decode
_decode_error = msgspec.json.Decoder(_ErrorAnswer).decode


KEYS_IGNORED: Final = Failed(
    "RecordDistributionStrategy",
    "the stream is set to AUTO: it ignores partition keys, so the changes of a row would lose their order."
    " Fix: aws kinesis update-stream-record-distribution-strategy --stream-arn ARN"
    " --record-distribution-strategy USER_PARTITION_KEY",
    stream_fault=True,
)
_OR_UNORDERED: Final = (
    "; or, if order doesn't matter, PARTITION_KEY_MODE=fallback and PARTITION_KEY_FALLBACK=lsn"
)


_UNUSABLE_CREDENTIALS: Final = Failed(
    "CredentialsUnusable",
    "the AWS credentials can't be sent: one of them holds a line break, or a character that isn't ASCII."
    " Fix: write the secret without the line break at its end (printf instead of echo)",
    stream_fault=True,
)


def ignores_keys(summary: Mapping[str, Any]) -> bool:
    """Whether the stream spreads records by itself; it can be switched at any time."""
    return summary.get("RecordDistributionStrategy") == "AUTO"


def keys_ignored(*, may_be_unordered: bool) -> Failed:
    """What is wrong with such a stream; `may_be_unordered`: whether settings can do without order."""
    if not may_be_unordered:
        return KEYS_IGNORED
    return KEYS_IGNORED._replace(message=KEYS_IGNORED.message + _OR_UNORDERED)


class KinesisClient:
    """One stream, seen through PutRecords and DescribeStreamSummary, and one for manifests, by PutRecord."""

    def __init__(
        self,
        *,
        stream: str,
        region: str,
        endpoint_url: str | None,
        connect_timeout_s: float,
        read_timeout_s: float,
        keys_matter: bool = True,
        may_be_unordered: bool = False,
        marks_stream: str | None = None,
    ) -> None:
        """`stream` is a name or an ARN. Credentials are looked for from now on.

        `keys_matter`: whether the order of records depends on their partition keys.
        `may_be_unordered`: whether other settings could do without it.
        `marks_stream`: where manifests go, if that is another stream.

        SettingsError if the AWS configuration is no good.
        """
        session = open_session(region)
        ca_bundle = ca_bundle_of(session)

        def transport(url: str) -> Transport:
            return open_transport(
                url,
                connect_timeout_s=connect_timeout_s,
                read_timeout_s=read_timeout_s,
                ca_bundle=ca_bundle,
            )

        def operations(stream: str) -> _Stream:
            named = {"StreamARN" if stream.startswith("arn:") else "StreamName": stream}
            endpoints = Endpoints(session, region=region, endpoint_url=endpoint_url, stream=named)
            put = transport(endpoints.put)
            return _Stream(
                _encode(named),
                _Operation("PutRecords", put),
                _Operation("PutRecord", put),
                _Operation("DescribeStreamSummary", transport(endpoints.describe)),
            )

        self._stream = operations(stream)
        has_own = marks_stream is not None and marks_stream != stream
        self._marks = operations(marks_stream) if marks_stream is not None and has_own else self._stream
        self._region = region
        self._keys_matter = keys_matter
        self._may_be_unordered = may_be_unordered
        self._first_wait_s = connect_timeout_s + read_timeout_s
        self._credentials = CredentialKeeper(partial(open_session, region))

    @property
    def endpoint_url(self) -> str:
        """Where records go."""
        return self._stream.put.transport.url

    def put_records(
        self, events: Sequence[ChangeEvent], may_send: Callable[[], bool] = lambda: True
    ) -> Result:
        """Send the events in one request."""
        answer = self._call(self._stream.put, self._body(events), may_send)
        if not isinstance(answer, HttpAnswer):
            return answer
        if answer.status == HTTPStatus.OK:
            return _read_answer(answer.body, [event.partition_key for event in events])
        return _read_error(answer)

    def put_mark(
        self, data: bytes, key: str, after: str | None, may_send: Callable[[], bool] = lambda: True
    ) -> MarkResult:
        """Send a manifest. Order among these is promised to those who ask for it (`after`)."""
        ordering = b"" if after is None else b',"SequenceNumberForOrdering":%b' % _encode(after)
        record = _encode(_Record(data, key))
        body = b"%b,%b%b}" % (self._marks.named[:-1], record[1:-1], ordering)
        answer = self._call(self._marks.put_one, body, may_send)
        if not isinstance(answer, HttpAnswer):
            return answer
        return _read_placed(answer.body) if answer.status == HTTPStatus.OK else _read_error(answer)

    def describe(self) -> Mapping[str, Any] | Failed:
        """DescribeStreamSummary: cheap, and writes nothing."""
        return self._summary(self._stream)

    def describe_marks(self) -> Mapping[str, Any] | Failed | None:
        """The same of the stream that manifests go to; None if it is no other."""
        return None if self._marks is self._stream else self._summary(self._marks)

    def _summary(self, stream: _Stream) -> Mapping[str, Any] | Failed:
        answer = self._call(stream.describe, stream.named)
        if not isinstance(answer, HttpAnswer):
            assert isinstance(answer, Failed), "nobody forbade it"
            return answer
        if answer.status == HTTPStatus.OK:
            return _read_summary(answer.body)
        code, message, *_ = _read_error(answer)
        return Failed(code, message, stream_fault=code in STREAM_FAULT_CODES)

    def probe(self) -> Failed | None:
        """Whether the stream is there, and keeps the order of a key's records."""
        for summary in (self.describe(), self.describe_marks()):
            if isinstance(summary, Failed):
                # A role that may only put is well set up: the service answered, that is enough.
                if not summary.code.startswith("AccessDenied"):
                    return summary
            elif summary is not None and self._keys_matter and ignores_keys(summary):
                return keys_ignored(may_be_unordered=self._may_be_unordered)
        return None

    def complaint(self) -> str | None:
        """Why credentials can't be renewed, if that is so."""
        trouble = self._credentials.trouble
        return None if trouble is None else f"{trouble.code}: {trouble.message}"

    def credentials_expire_at(self) -> float | None:
        """When the credentials at hand expire, as time.time() tells time; None: never, or there are none."""
        return self._credentials.expires_at

    def close(self) -> None:
        """Close idle connections, and look for credentials no more."""
        self._credentials.close()
        for stream in (self._stream, self._marks):
            stream.put.transport.close()
            stream.describe.transport.close()

    def _call(
        self, operation: _Operation, body: bytes, may_send: Callable[[], bool] = lambda: True
    ) -> HttpAnswer | Failed | Unsent:
        """One request: credentials, signature, connection, and at the very last the question `may_send`."""
        credentials = self._credentials.take(first_wait_s=self._first_wait_s)
        if isinstance(credentials, Failed):
            return credentials
        if not all(part.isascii() and part.isprintable() for part in credentials if part):
            # Asked before anybody raises an error for it, whose text would quote the secret.
            return _UNUSABLE_CREDENTIALS
        request = AWSRequest(
            method="POST",
            url=operation.transport.url,
            data=body,
            headers={"Content-Type": _JSON, "X-Amz-Target": f"Kinesis_20131202.{operation.name}"},
        )
        SigV4Auth(credentials, "kinesis", self._region).add_auth(request)
        try:
            return operation.transport.send(request, may_send=may_send) or Unsent()
        except (HTTPException, OSError) as error:
            what = f"{one_line(error)} ({operation.transport.url})"
            return Failed(type(error).__name__, what, stream_fault=False)

    def _body(self, events: Sequence[ChangeEvent]) -> bytes:
        # `data`, written out: this is the path of every change.
        records = _encode(
            [
                _Record(
                    event.payload.replace(b"{", prefix, 1) if (prefix := event.prefix) else event.payload,
                    event.partition_key,
                )
                for event in events
            ]
        )
        return b'%b,"Records":%b}' % (self._stream.named[:-1], records)


class _Record(msgspec.Struct, gc=False):
    """As PutRecord and PutRecords name its members."""

    Data: bytes
    PartitionKey: str


class _Operation(NamedTuple):
    name: str
    transport: Transport


class _Stream(NamedTuple):
    """A stream's name, as a JSON object that a body begins with, and what can be done with it."""

    named: bytes
    put: _Operation
    put_one: _Operation
    describe: _Operation


def _read_answer(content: bytes, keys: Sequence[str]) -> Result:
    try:
        answer = _decode_answer(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Failed(
            "UnreadableAnswer", "the answer to PutRecords isn't what Kinesis documents", stream_fault=False
        )
    entries = answer.Records
    if len(entries) != len(keys):
        return Failed(
            "UnreadableAnswer",
            f"PutRecords answered for {len(entries)} records of {len(keys)}",
            stream_fault=False,
        )
    return Accepted(Taken.of(entries)) if is_in_order(keys, entries) else Answered(entries)


def _read_placed(content: bytes) -> Placed | Failed:
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
        entry = _decode_entry(content)
        if entry.sequence:
            return Placed(entry.sequence, entry.shard)
    return Failed(
        "UnreadableAnswer", "the answer to PutRecord isn't what Kinesis documents", stream_fault=False
    )


def _read_error(answer: HttpAnswer) -> Refused | Failed:
    error = _ErrorAnswer()
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
        error = _decode_error(answer.body)
    code = error.type or answer.error_type or f"HTTP{answer.status}"
    code = code.split(":")[0].rpartition("#")[2]
    return classify_error(code, error.message or error.Message or f"HTTP status {answer.status}")


def _read_summary(content: bytes) -> Mapping[str, Any] | Failed:
    try:
        return _decode_summary(content).StreamDescriptionSummary
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Failed(
            "UnreadableAnswer",
            "the answer to DescribeStreamSummary isn't what Kinesis documents",
            stream_fault=False,
        )

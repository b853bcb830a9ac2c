"""PutRecords with bodies built by hand and signed by botocore.

boto3 spends seven times the CPU on the same request (docs/dependencies.md); credentials, endpoints and
signing are still botocore's.
"""

from __future__ import annotations

import binascii
import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from http.client import HTTPException
from typing import Any, Final, NamedTuple, Protocol

import msgspec
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest

from penstock.kinesis.aws.credentials import CredentialKeeper
from penstock.kinesis.aws.outcome import (
    STREAM_FAULT_CODES,
    Accepted,
    Answered,
    Failed,
    Refused,
    Result,
    Unsent,
    classify_error,
)
from penstock.kinesis.aws.session import Endpoints, ca_bundle_of, one_line, open_session
from penstock.kinesis.aws.transport import HttpAnswer, Transport, open_transport
from penstock.kinesis.write.event import ChangeEvent

_JSON: Final = "application/x-amz-json-1.1"
_b64 = binascii.b2a_base64
_encode_text = msgspec.json.Encoder().encode


class _Entry(msgspec.Struct, gc=False):
    ErrorCode: str | None = None
    SequenceNumber: str | None = None

    @property
    def code(self) -> str | None:
        """Why it failed. A record without a sequence number is in no shard, whatever else the answer says."""
        return self.ErrorCode or (None if self.SequenceNumber else "NoSequenceNumber")


class _PutRecordsAnswer(msgspec.Struct, gc=False):
    Records: list[_Entry]


class _ErrorAnswer(msgspec.Struct, gc=False):
    type: str = msgspec.field(default="", name="__type")
    message: str = ""
    Message: str = ""


class _SummaryAnswer(msgspec.Struct, gc=False):
    StreamDescriptionSummary: dict[str, Any] = {}


_decode_summary = msgspec.json.Decoder(_SummaryAnswer).decode
_decode_answer = msgspec.json.Decoder(_PutRecordsAnswer).decode
_decode_error = msgspec.json.Decoder(_ErrorAnswer).decode


class RecordSink(Protocol):
    """Where batches go: blocking calls, made from worker threads."""

    def put_records(self, events: Sequence[ChangeEvent], may_send: Callable[[], bool]) -> Result:
        """Send the events in one request; never raises for what the network or the service does.

        `may_send` is asked once all is ready, directly before the request leaves; if it says no, nothing is
        sent and the result is Unsent.
        """

    def probe(self) -> Failed | None:
        """Ask whether the destination answers, and is what we need; None if so."""

    def complaint(self) -> str | None:
        """What works still, and will not for long; asks nobody."""

    def close(self) -> None:
        """Close idle connections."""


KEYS_IGNORED: Final = Failed(
    "RecordDistributionStrategy",
    "the stream is set to AUTO: it ignores partition keys, so the changes of a row would lose their order."
    " Fix: aws kinesis update-stream-record-distribution-strategy --stream-arn ARN"
    " --record-distribution-strategy USER_PARTITION_KEY; or, if order doesn't matter,"
    " PARTITION_KEY_MODE=fallback and PARTITION_KEY_FALLBACK=lsn",
    stream_fault=True,
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


class KinesisClient:
    """One stream, seen through PutRecords and DescribeStreamSummary."""

    def __init__(
        self,
        *,
        stream: str,
        region: str,
        endpoint_url: str | None,
        connect_timeout_s: float,
        read_timeout_s: float,
        keys_matter: bool = True,
    ) -> None:
        """`stream` is a name or an ARN. Credentials are looked for from now on.

        `keys_matter`: whether the order of records depends on their partition keys.

        SettingsError if the AWS configuration is no good.
        """
        session = open_session(region)
        named = {"StreamARN" if stream.startswith("arn:") else "StreamName": stream}
        endpoints = Endpoints(session, region=region, endpoint_url=endpoint_url, stream=named)
        ca_bundle = ca_bundle_of(session)

        def transport(url: str) -> Transport:
            return open_transport(
                url,
                connect_timeout_s=connect_timeout_s,
                read_timeout_s=read_timeout_s,
                ca_bundle=ca_bundle,
            )

        self._put = _Operation("PutRecords", transport(endpoints.put))
        self._describe = _Operation("DescribeStreamSummary", transport(endpoints.describe))
        self._region = region
        self._keys_matter = keys_matter
        self._first_wait_s = connect_timeout_s + read_timeout_s
        self._named = _encode_text(named)
        self._credentials = CredentialKeeper(partial(open_session, region))

    @property
    def endpoint_url(self) -> str:
        """Where records go."""
        return self._put.transport.url

    def put_records(
        self, events: Sequence[ChangeEvent], may_send: Callable[[], bool] = lambda: True
    ) -> Result:
        """Send the events in one request."""
        answer = self._call(self._put, self._body(events), may_send)
        if not isinstance(answer, HttpAnswer):
            return answer
        if answer.status == HTTPStatus.OK:
            return _read_answer(answer.body, len(events))
        return _read_error(answer)

    def describe(self) -> Mapping[str, Any] | Failed:
        """DescribeStreamSummary: cheap, and writes nothing."""
        answer = self._call(self._describe, self._named)
        if not isinstance(answer, HttpAnswer):
            assert isinstance(answer, Failed), "nobody forbade it"
            return answer
        if answer.status == HTTPStatus.OK:
            return _read_summary(answer.body)
        code, message, *_ = _read_error(answer)
        return Failed(code, message, stream_fault=code in STREAM_FAULT_CODES)

    def probe(self) -> Failed | None:
        """Whether the stream is there, and keeps the order of a key's records."""
        summary = self.describe()
        if not isinstance(summary, Failed):
            return KEYS_IGNORED if self._keys_matter and ignores_keys(summary) else None
        # A role that may only put is well set up: the service answered, that is enough.
        return None if summary.code.startswith("AccessDenied") else summary

    def complaint(self) -> str | None:
        """Why credentials can't be renewed, if that is so."""
        trouble = self._credentials.trouble
        return None if trouble is None else f"{trouble.code}: {trouble.message}"

    def close(self) -> None:
        """Close idle connections, and look for credentials no more."""
        self._credentials.close()
        self._put.transport.close()
        self._describe.transport.close()

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
        records = [
            b'{"Data":"%b","PartitionKey":%b}'
            % (_b64(event.payload, newline=False), _encode_text(event.partition_key))
            for event in events
        ]
        return b'%b,"Records":[%b]}' % (self._named[:-1], b",".join(records))


class _Operation(NamedTuple):
    name: str
    transport: Transport


def _read_answer(content: bytes, sent: int) -> Result:
    try:
        answer = _decode_answer(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Failed(
            "UnreadableAnswer", "the answer to PutRecords isn't what Kinesis documents", stream_fault=False
        )
    if len(answer.Records) != sent:
        return Failed(
            "UnreadableAnswer",
            f"PutRecords answered for {len(answer.Records)} records of {sent}",
            stream_fault=False,
        )
    codes = [record.code for record in answer.Records]
    return Answered(codes) if any(codes) else Accepted()


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

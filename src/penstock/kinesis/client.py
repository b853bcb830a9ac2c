"""PutRecords with bodies built by hand and signed by botocore.

boto3 spends seven times the CPU on the same request (docs/dependencies.md); credentials, endpoints and
signing are still botocore's.
"""

from __future__ import annotations

import binascii
import contextlib
from collections.abc import Sequence
from http import HTTPStatus
from http.client import HTTPException
from typing import Any, Final, Protocol

import botocore.session
import msgspec
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, NoCredentialsError

from penstock.capture.event import ChangeEvent
from penstock.kinesis.outcome import Accepted, Answered, Failed, Result, classify_error
from penstock.kinesis.transport import HttpAnswer, open_transport

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


_decode_answer = msgspec.json.Decoder(_PutRecordsAnswer).decode
_decode_error = msgspec.json.Decoder(_ErrorAnswer).decode


_NO_CREDENTIALS: Final = Failed("NoCredentials", "no AWS credentials were found", stream_fault=True)


class RecordSink(Protocol):
    """Where batches go: blocking calls, made from worker threads."""

    def put_records(self, events: Sequence[ChangeEvent]) -> Result:
        """Send the events in one request; never raises for what the network or the service does."""

    def probe(self) -> Failed | None:
        """Ask whether the destination answers at all; None if it does."""

    def close(self) -> None:
        """Close idle connections."""


class KinesisClient:
    """One stream, seen through PutRecords."""

    def __init__(
        self,
        *,
        stream: str,
        region: str,
        endpoint_url: str | None,
        connect_timeout_s: float,
        read_timeout_s: float,
        max_connections: int,
    ) -> None:
        session = botocore.session.get_session()
        # `retries` off: a retry that we don't know of would break the order per key.
        config = Config(
            connect_timeout=connect_timeout_s,
            read_timeout=read_timeout_s,
            retries={"total_max_attempts": 1},
        )
        self._api: Any = session.create_client(
            "kinesis", region_name=region, endpoint_url=endpoint_url, config=config
        )
        self._session = session
        self._region = region
        self._stream = stream
        self._url: str = self._api.meta.endpoint_url.rstrip("/") + "/"
        self._head = b'{"StreamName":' + _encode_text(stream) + b',"Records":['
        self._transport = open_transport(
            self._url,
            connect_timeout_s=connect_timeout_s,
            read_timeout_s=read_timeout_s,
            ca_bundle=session.get_config_variable("ca_bundle"),
            max_connections=max_connections,
        )

    @property
    def endpoint_url(self) -> str:
        """Where requests go."""
        return self._url

    def put_records(self, events: Sequence[ChangeEvent]) -> Result:
        """Send the events in one request."""
        body = self._body(events)
        try:
            request = self._signed(body)
        except NoCredentialsError:
            return _NO_CREDENTIALS
        except (BotoCoreError, ClientError, RuntimeError) as error:
            # A refresh that failed: the metadata service or STS, whose RuntimeError says that what it gave
            # has expired.
            return Failed("CredentialsRefresh", _brief(error), stream_fault=True)
        try:
            answer = self._transport.send(request)
        except (HTTPClientError, HTTPException, OSError) as error:
            return Failed(type(error).__name__, _brief(error), stream_fault=False)
        if answer.status == HTTPStatus.OK:
            return _read_answer(answer.body, len(events))
        return _read_error(answer)

    def probe(self) -> Failed | None:
        """DescribeStreamSummary: cheap, and writes nothing."""
        try:
            self._api.describe_stream_summary(StreamName=self._stream)
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "Unknown")
            result = classify_error(code, _brief(error))
            if code.startswith("AccessDenied") and error.operation_name == "DescribeStreamSummary":
                # A role that may only put is well set up: the service answered, that is enough. (STS, which
                # gives the credentials, could deny access too.)
                return None
            return result if isinstance(result, Failed) else None
        except NoCredentialsError:
            return _NO_CREDENTIALS
        except (BotoCoreError, RuntimeError) as error:
            return Failed(type(error).__name__, _brief(error), stream_fault=False)
        return None

    def close(self) -> None:
        """Close idle connections."""
        self._transport.close()
        self._api.close()

    def _body(self, events: Sequence[ChangeEvent]) -> bytes:
        records = [
            b'{"Data":"%b","PartitionKey":%b}'
            % (_b64(event.payload, newline=False), _encode_text(event.partition_key))
            for event in events
        ]
        return b"%b%b]}" % (self._head, b",".join(records))

    def _signed(self, body: bytes) -> AWSRequest:
        # Asked each time: botocore caches what it found and refreshes it, and looks again if it found none.
        credentials = self._session.get_credentials()
        if credentials is None:
            raise NoCredentialsError
        request = AWSRequest(
            method="POST",
            url=self._url,
            data=body,
            headers={"Content-Type": _JSON, "X-Amz-Target": "Kinesis_20131202.PutRecords"},
        )
        SigV4Auth(credentials.get_frozen_credentials(), "kinesis", self._region).add_auth(request)
        return request


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


def _read_error(answer: HttpAnswer) -> Result:
    error = _ErrorAnswer()
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
        error = _decode_error(answer.body)
    code = error.type or answer.error_type or f"HTTP{answer.status}"
    code = code.split(":")[0].rpartition("#")[2]
    return classify_error(code, error.message or error.Message or f"HTTP status {answer.status}")


def _brief(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]

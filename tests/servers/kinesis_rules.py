"""What Kinesis refuses: PutRecords over a documented limit, and requests without a right signature."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_RECORDS = 500
MAX_REQUEST_BYTES = 10 * 1024 * 1024
MAX_KEY_CHARACTERS = 256

_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=[^/,\s]+/(?P<scope>\d{8}/[^/,\s]+/kinesis/aws4_request),"
    r" ?SignedHeaders=(?P<headers>[a-z0-9;-]+), ?Signature=(?P<signature>[0-9a-f]{64})"
)


@dataclass(frozen=True)
class Refusal:
    """An error answer: HTTP status, error code, message."""

    status: int
    code: str
    message: str

    def body(self) -> bytes:
        """The answer's body, as the JSON protocol has it."""
        return json.dumps({"__type": self.code, "message": self.message}).encode()


@dataclass(frozen=True)
class SentRecord:
    """One record of a PutRecords request."""

    key: str
    data: bytes

    @property
    def size(self) -> int:
        """What Kinesis counts: data and partition key, in bytes."""
        return len(self.data) + len(self.key.encode())


def read_records(body: bytes) -> tuple[SentRecord, ...] | Refusal:
    """The records of a PutRecords body, or what Kinesis says to a body that can't be read."""
    try:
        request: dict[str, Any] = json.loads(body)
        return tuple(
            SentRecord(entry["PartitionKey"], base64.b64decode(entry["Data"], validate=True))
            for entry in request["Records"]
        )
    except (ValueError, KeyError, TypeError, binascii.Error) as unreadable:
        return Refusal(400, "SerializationException", f"can't read the request: {unreadable!r}")


def check_limits(records: Sequence[SentRecord], max_record_bytes: int) -> Refusal | None:
    """The refusal that a request over a limit gets; None if it keeps them all."""
    if not records:
        return _invalid("Value '[]' at 'records'", "length greater than or equal to 1")
    if len(records) > MAX_RECORDS:
        return _invalid("Value at 'records'", f"length less than or equal to {MAX_RECORDS}")
    for place, record in enumerate(records, start=1):
        at = f"records.{place}.member"
        if not record.key:
            return _invalid(f"Value '' at '{at}.partitionKey'", "length greater than or equal to 1")
        if len(record.key) > MAX_KEY_CHARACTERS:
            return _invalid(
                f"Value at '{at}.partitionKey'", f"length less than or equal to {MAX_KEY_CHARACTERS}"
            )
        if record.size > max_record_bytes:
            return _invalid(f"Value at '{at}.data'", f"length less than or equal to {max_record_bytes}")
    if sum(record.size for record in records) > MAX_REQUEST_BYTES:
        return Refusal(400, "InvalidArgumentException", "Records size exceeds 10 MB limit")
    return None


def check_signature(
    method: str, path: str, headers: Mapping[str, str], body: bytes, secret: str
) -> Refusal | None:
    """The refusal that a request without a right version 4 signature gets; None if its signature is right.

    Header names are in lower case.
    """
    if "authorization" not in headers:
        return Refusal(400, "MissingAuthenticationTokenException", "Missing Authentication Token")
    given = _AUTHORIZATION.fullmatch(headers["authorization"])
    if given is None or not {"host", "x-amz-date"} <= set(given["headers"].split(";")) <= headers.keys():
        return Refusal(400, "IncompleteSignatureException", f"not a signature: {headers['authorization']}")
    signed = [f"{name}:{' '.join(headers[name].split())}" for name in given["headers"].split(";")]
    canonical = [method, path, "", *signed, "", given["headers"], _sha256(body)]
    to_sign = [
        "AWS4-HMAC-SHA256",
        headers["x-amz-date"],
        given["scope"],
        _sha256("\n".join(canonical).encode()),
    ]
    key = f"AWS4{secret}".encode()
    for part in [*given["scope"].split("/"), "\n".join(to_sign)]:
        key = hmac.digest(key, part.encode(), "sha256")
    if not hmac.compare_digest(key.hex(), given["signature"]):
        return Refusal(400, "InvalidSignatureException", "The request signature we calculated does not match")
    return None


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _invalid(value: str, constraint: str) -> Refusal:
    message = (
        f"1 validation error detected: {value} failed to satisfy constraint: Member must have {constraint}"
    )
    return Refusal(400, "ValidationException", message)

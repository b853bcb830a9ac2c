"""What became of each record of a PutRecords request."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple


class Outcome(Enum):
    """The fate of one record in one request."""

    ACCEPTED = "accepted"
    """Kinesis has it, after everything older of its key: its ack_id may be marked."""
    SLIPPED = "slipped"
    """Kinesis may have it, but an older record of its key failed: it is sent again after that one."""
    RETRY = "retry"
    """Not taken this time."""
    UNDELIVERABLE = "undeliverable"
    """Kinesis will never take it as it is."""


class Accepted(NamedTuple):
    """PutRecords took every record."""


class Answered(NamedTuple):
    """PutRecords failed some records: an error code, or None, for each."""

    codes: Sequence[str | None]


class Refused(NamedTuple):
    """The request was refused because of what one of its records is; the answer doesn't say which."""

    code: str
    message: str


class Failed(NamedTuple):
    """Nothing is known of the records: throttled, broken line, no access, no such stream."""

    code: str
    message: str
    stream_fault: bool
    """True if no retry can help until somebody mends the stream or our right to it."""


class Unsent(NamedTuple):
    """Nothing left this process: when all was ready, it was no longer allowed."""


Result = Accepted | Answered | Refused | Failed | Unsent

RECORD_FAULT_CODES = frozenset(
    {
        "HTTP413",
        "InvalidArgumentException",
        "RequestEntityTooLargeException",
        "ValidationError",
        "ValidationException",
    }
)
"""The request is well-formed and allowed, but it or a record in it is not acceptable: a part of it may be."""

STREAM_FAULT_CODES = frozenset(
    {
        "AccessDenied",
        "AccessDeniedException",
        "ExpiredTokenException",
        "IncompleteSignature",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "KMSAccessDeniedException",
        "KMSDisabledException",
        "KMSInvalidStateException",
        "KMSNotFoundException",
        "KMSOptInRequired",
        "MissingAuthenticationTokenException",
        "NoCredentials",
        "NotAuthorized",
        "OptInRequired",
        "RequestExpired",
        "ResourceNotFoundException",
        "SerializationException",
        "UnknownOperationException",
        "UnrecognizedClientException",
    }
)
"""The stream or our right to it has to be mended; never the records' fault."""


def classify_error(code: str, message: str) -> Refused | Failed:
    """What an error of the whole request means. Unknown codes are transient: retrying loses nothing."""
    if code in RECORD_FAULT_CODES:
        return Refused(code, message)
    return Failed(code, message, stream_fault=code in STREAM_FAULT_CODES)


def judge(keys: Sequence[str], codes: Sequence[str | None]) -> list[Outcome]:
    """Turn the answer of PutRecords into an outcome for each record, in the order of the request.

    Kinesis goes on after a failed record, so a later record of the same key may have been taken before
    it. Such a record has slipped through: it must come again, after the failed one.
    """
    if len(keys) != len(codes):
        raise ValueError(f"PutRecords answered for {len(codes)} records of {len(keys)}")
    outcomes = []
    failed_keys: set[str] = set()
    for key, code in zip(keys, codes, strict=True):
        if key in failed_keys:
            outcomes.append(Outcome.SLIPPED)
        elif code is None:
            outcomes.append(Outcome.ACCEPTED)
        else:
            failed_keys.add(key)
            outcomes.append(Outcome.UNDELIVERABLE if code in RECORD_FAULT_CODES else Outcome.RETRY)
    return outcomes

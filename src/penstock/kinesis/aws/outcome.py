"""What became of each record of a PutRecords request."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple, Self

import msgspec

from penstock.kinesis.marked.manifest import ShardRange

THROTTLED: Final = "ProvisionedThroughputExceededException"
_SHARD: Final = re.compile(r"shardId-[0-9]+")


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


class Entry(msgspec.Struct, gc=False, frozen=True):
    """What PutRecords answers for one record."""

    error: str | None = msgspec.field(default=None, name="ErrorCode")
    shard: str = msgspec.field(default="", name="ShardId")
    sequence: str = msgspec.field(default="", name="SequenceNumber")
    """A decimal number of varying length."""
    message: str | None = msgspec.field(default=None, name="ErrorMessage")

    @property
    def code(self) -> str | None:
        """Why it failed. A record without a sequence number is in no shard, whatever else the answer says."""
        return self.error or (None if self.sequence else "NoSequenceNumber")


def throttling_shards(entries: Sequence[Entry]) -> list[str]:
    """The shard of each record that was failed because it is at its limit; only the message names it."""
    throttled = [entry.message or "" for entry in entries if entry.error == THROTTLED]
    return [found[0] if (found := _SHARD.search(message)) else "unknown" for message in throttled]


class Taken(NamedTuple):
    """Where records are that Kinesis took."""

    entries: Sequence[Entry]
    """One for each."""
    shards: Mapping[str, ShardRange]
    """Between which of a request's records they stand in each shard, and how many."""

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> Self:
        """The lowest and the highest of them in each shard."""
        numbers: defaultdict[str, list[str]] = defaultdict(list)
        for entry in entries:
            numbers[entry.shard].append(entry.sequence)
        return cls(entries, {shard: _range(its_own) for shard, its_own in numbers.items()})

    def split(self, at: int) -> tuple[Self, Self]:
        """Those before this place, and the others.

        Only the smaller part is looked at. The larger one keeps the ends of the whole: it stands between
        them.
        """
        before, behind = self.entries[:at], self.entries[at:]
        if len(before) < len(behind):
            part = self.of(before)
            return part, self._without(part, behind)
        part = self.of(behind)
        return self._without(part, before), part

    def _without(self, others: Taken, entries: Sequence[Entry]) -> Self:
        shards = {}
        for shard, whole in self.shards.items():
            its_others = others.shards.get(shard)
            count = whole.count - (0 if its_others is None else its_others.count)
            if count:
                shards[shard] = ShardRange(whole.first, whole.last, count)
        return self._replace(entries=entries, shards=shards)


def _range(numbers: list[str]) -> ShardRange:
    # By text, and then, as sorting is stable, by length: by value. They mostly ascend, so both are quick.
    numbers.sort()
    numbers.sort(key=len)
    return ShardRange(numbers[0], numbers[-1], len(numbers))


class Accepted(NamedTuple):
    """PutRecords took every record, and those of each key in order."""

    taken: Taken


class Answered(NamedTuple):
    """PutRecords failed some records, or took them out of order."""

    entries: Sequence[Entry]

    @property
    def codes(self) -> list[str | None]:
        """An error code, or None, for each."""
        return [entry.code for entry in self.entries]


class Placed(NamedTuple):
    """PutRecord took the record."""

    sequence: str
    shard: str = ""


class Refused(NamedTuple):
    """The request was refused because of what one of its records is; the answer doesn't say which."""

    code: str
    message: str


class Failed(NamedTuple):
    """Nothing is known of the records: throttled, broken line, no access, no such stream."""

    code: str
    message: str
    stream_fault: bool
    """True if no retry can help until somebody repairs the stream or our right to it."""


class Unsent(NamedTuple):
    """Nothing left this process: when all was ready, it was no longer allowed."""


Result = Accepted | Answered | Refused | Failed | Unsent
"""Of PutRecords."""
MarkResult = Placed | Refused | Failed | Unsent
"""Of PutRecord."""

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
"""The stream or our right to it has to be repaired; never the records' fault."""


def classify_error(code: str, message: str) -> Refused | Failed:
    """What an error of the whole request means. Unknown codes are transient: retrying loses nothing."""
    if code in RECORD_FAULT_CODES:
        return Refused(code, message)
    return Failed(code, message, stream_fault=code in STREAM_FAULT_CODES)


def judge(keys: Sequence[str], entries: Sequence[Entry]) -> list[Outcome]:
    """Turn the answer of PutRecords into an outcome for each record, in the order of the request.

    Kinesis goes on after a failed record, so a later record of the same key may have been taken before
    it; and what it took it may have put into another order than it was asked. Such a record has slipped
    through: it must come again, after the other one.
    """
    if len(keys) != len(entries):
        raise ValueError(f"PutRecords answered for {len(entries)} records of {len(keys)}")
    outcomes = []
    failed_keys: set[str] = set()
    newest: dict[str, Entry] = {}
    for key, entry in zip(keys, entries, strict=True):
        code = entry.code
        if key in failed_keys:
            outcomes.append(Outcome.SLIPPED)
        elif code is not None:
            failed_keys.add(key)
            outcomes.append(Outcome.UNDELIVERABLE if code in RECORD_FAULT_CODES else Outcome.RETRY)
        elif key in newest and _stands_before(entry, newest[key]):
            failed_keys.add(key)
            outcomes.append(Outcome.SLIPPED)
        else:
            newest[key] = entry
            outcomes.append(Outcome.ACCEPTED)
    return outcomes


def is_in_order(keys: Sequence[str], entries: Sequence[Entry]) -> bool:
    """Whether all were taken, and a key's records stand in its shard in the order of the request."""
    # What `code` says, written out: this is the path of every record.
    if any(entry.error or not entry.sequence for entry in entries):
        return False
    # The ordinary case, in which there is no order to judge.
    if len(set(keys)) == len(keys):
        return True
    last = dict(zip(keys, entries, strict=True))
    repeated = {key for key, entry in zip(keys, entries, strict=True) if last[key] is not entry}
    some = [place for place, key in enumerate(keys) if key in repeated]
    outcomes = judge([keys[place] for place in some], [entries[place] for place in some])
    return all(outcome is Outcome.ACCEPTED for outcome in outcomes)


def _stands_before(entry: Entry, other: Entry) -> bool:
    """By sequence numbers, which tell nothing of records in different shards."""
    if entry.shard != other.shard:
        return False
    return (len(entry.sequence), entry.sequence) <= (len(other.sequence), other.sequence)

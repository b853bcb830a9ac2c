"""The faults that the proxy can put between a client and Kinesis, and what they make of one request."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from tests.servers.kinesis_rules import Refusal, SentRecord

THROTTLED = Refusal(400, "ProvisionedThroughputExceededException", "Rate exceeded for the stream")
LIMIT_EXCEEDED = Refusal(400, "LimitExceededException", "Rate exceeded")
INTERNAL_FAILURE = Refusal(500, "InternalFailure", "Internal service failure")
UNAVAILABLE = Refusal(503, "ServiceUnavailable", "The service is unavailable")
ACCESS_DENIED = Refusal(400, "AccessDeniedException", "User is not authorized to perform kinesis:PutRecords")
NO_SUCH_STREAM = Refusal(400, "ResourceNotFoundException", "Stream under account 123456789012 not found")


@dataclass(frozen=True)
class Answer:
    """Answer the whole request with an error; nothing of it is forwarded."""

    refusal: Refusal


@dataclass(frozen=True)
class FailRecords:
    """Fail some records of a request, forward the others.

    Which ones: those at the positions `at`, those whose key is in `keys`, and a random `share` of all.
    """

    at: Collection[int] = ()
    keys: Collection[str] = ()
    share: float = 0.0
    code: str = "ProvisionedThroughputExceededException"

    def positions(self, records: Sequence[SentRecord], rng: random.Random) -> list[int]:
        """The positions of the records that fail."""
        return [
            position
            for position, record in enumerate(records)
            if position in self.at or record.key in self.keys or rng.random() < self.share
        ]


@dataclass(frozen=True)
class RefuseKey:
    """Refuse, with a ValidationException, every whole request that holds a record of this key."""

    key: str


@dataclass(frozen=True)
class CutBefore:
    """Reset the connection, and forward nothing."""


@dataclass(frozen=True)
class CutAfter:
    """Forward the request, and reset the connection instead of answering."""


@dataclass(frozen=True)
class AmendSummary:
    """Forward the request, and change one member of the stream's summary in the answer."""

    member: str
    value: str | int


@dataclass(frozen=True)
class Delay:
    """Wait before forwarding the request, before answering it, or both."""

    before_s: float = 0.0
    after_s: float = 0.0


Fault = Answer | FailRecords | RefuseKey | CutBefore | CutAfter | Delay | AmendSummary


@dataclass
class Plan:
    """What happens to one request."""

    refusal: Refusal | None = None
    failing: dict[int, str] = field(default_factory=dict)
    """The error code of each record that fails, by position."""
    summary: dict[str, str | int] = field(default_factory=dict)
    """What the answer is to say of the stream, by member."""
    delay_before_s: float = 0.0
    delay_after_s: float = 0.0
    cut_before: bool = False
    cut_after: bool = False


@dataclass(eq=False)
class _Injected:
    fault: Fault
    left: int | None
    probability: float
    operation: str | None
    to_pass: int = 0
    """So many requests are let pass first."""


class Faults:
    """The faults that are switched on.

    Each request asks them in the order in which they were switched on, and their effects add up; one that
    ends the request (Answer, RefuseKey, CutBefore) ends the asking. A fault that finds none of its records
    in a request has not struck, and is not used up.
    """

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._injected: list[_Injected] = []

    def switch_on(
        self, fault: Fault, *, times: int | None, probability: float, operation: str | None, after: int = 0
    ) -> None:
        """Let a fault strike `times` requests (None: all) of an operation (None: any), `after` so many."""
        self._injected.append(_Injected(fault, times, probability, operation, after))

    def switch_off(self, fault: Fault | None) -> None:
        """Switch one fault off, or all (None)."""
        self._injected = [each for each in self._injected if fault is not None and each.fault != fault]

    def plan(self, operation: str, records: Sequence[SentRecord]) -> Plan:
        """What the faults make of a request."""
        plan = Plan()
        for each in self._injected:
            if each.left == 0 or each.operation not in (None, operation):
                continue
            if each.to_pass:
                each.to_pass -= 1
                continue
            if self._rng.random() >= each.probability:
                continue
            if not self._strike(each.fault, plan, records):
                continue
            if each.left is not None:
                each.left -= 1
            if plan.refusal is not None or plan.cut_before:
                break
        return plan

    def _strike(self, fault: Fault, plan: Plan, records: Sequence[SentRecord]) -> bool:
        """Add one fault's effect to the plan, and say whether it had any."""
        match fault:
            case Answer(refusal):
                plan.refusal = refusal
            case RefuseKey(key):
                if all(record.key != key for record in records):
                    return False
                plan.refusal = Refusal(400, "ValidationException", f"1 validation error detected: '{key}'")
            case CutBefore():
                plan.cut_before = True
            case AmendSummary(member, value):
                plan.summary[member] = value
            case CutAfter():
                plan.cut_after = True
            case Delay(before, after):
                plan.delay_before_s += before
                plan.delay_after_s += after
            case FailRecords():
                failing = fault.positions(records, self._rng)
                plan.failing |= dict.fromkeys(failing, fault.code)
                return bool(failing)
        return True

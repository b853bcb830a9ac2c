from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from penstock import errors
from penstock.errors import NeedsOperator, PenstockError
from penstock.kinesis.write.quarantine import QuarantineError
from penstock.service.retry_policy import Pace, Policy, policy_for


def descendants(kind: type[PenstockError]) -> Iterator[type[PenstockError]]:
    for child in kind.__subclasses__():
        yield child
        yield from descendants(child)


@pytest.mark.parametrize(
    ("error", "policy"),
    [
        (errors.SlotBusy("x"), Policy(Pace.SOON, "error")),
        (errors.SlotMoved("x"), Policy(Pace.SOON, "error")),
        (errors.SinkOutage("x"), Policy(Pace.WHEN_SINK_ANSWERS, "error")),
        (errors.ProtocolViolation("x"), Policy(Pace.SOON, "error")),
        (errors.LineLost("x"), Policy(Pace.SOON, "warning")),
        (errors.LineStale("x"), Policy(Pace.SOON, "warning")),
        (errors.LockLost("x"), Policy(Pace.SOON, "warning")),
        (errors.ConnectionFailed("x"), Policy(Pace.SOON, "warning")),
        (QuarantineError("x"), Policy(Pace.SOON, "error")),
        (ValueError("a bug"), Policy(Pace.SOON, "error")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_error_has_its_row(error: Exception, policy: Policy) -> None:
    assert policy_for(error) == policy


@pytest.mark.parametrize("kind", list(descendants(NeedsOperator)), ids=lambda kind: kind.__name__)
def test_what_only_an_operator_can_mend_is_loud_and_slow(kind: type[PenstockError]) -> None:
    assert policy_for(kind("x")) == Policy(Pace.SLOW, "error")


def test_levels_are_names_of_log_methods() -> None:
    levels = {policy_for(kind("x")).level for kind in descendants(PenstockError)}

    assert levels <= {"info", "warning", "error"}


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyboardInterrupt()])
def test_what_is_no_ordinary_error_has_no_row(error: BaseException) -> None:
    with pytest.raises(TypeError, match=type(error).__name__):
        policy_for(error)

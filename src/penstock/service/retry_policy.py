"""What each error means for the leader cycle: how soon to try again, and how loud to be."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from penstock.errors import (
    ConnectionFailed,
    DecodingFailed,
    KeyRecovered,
    LineLost,
    LockLingers,
    NeedsOperator,
    PenstockError,
    ProtocolViolation,
    SinkOutage,
    SlotBusy,
    SlotMoved,
)

QUICK_RETRY_S = 3.0
"""The longest pause before a look that costs a moment: who is well again says so within 5 s."""
SLOW_RETRY_S = 30.0
"""The longest pause before something is tried that only an operator can fix."""


class Pace(Enum):
    """How soon the leader cycle competes again."""

    SOON = "soon"
    """After QUICK_RETRY_S or STANDBY_RETRY_INTERVAL_S, at most; a server that comes back is met quickly."""
    SLOW = "slow"
    """Once a look at the server finds something else, or after SLOW_RETRY_S: only an operator can fix it."""
    WHEN_SINK_ANSWERS = "when_sink_answers"
    """Once a probe of the destination succeeds."""


class Policy(NamedTuple):
    """One row of the table."""

    pace: Pace
    level: str
    """The log level at which the error is said."""


_TABLE: tuple[tuple[type[BaseException], Policy], ...] = (
    (SlotBusy, Policy(Pace.SOON, "error")),
    (SlotMoved, Policy(Pace.SOON, "error")),
    (SinkOutage, Policy(Pace.WHEN_SINK_ANSWERS, "error")),
    (KeyRecovered, Policy(Pace.SOON, "warning")),
    (NeedsOperator, Policy(Pace.SLOW, "error")),
    (ProtocolViolation, Policy(Pace.SOON, "error")),
    (DecodingFailed, Policy(Pace.SOON, "error")),
    (LineLost, Policy(Pace.SOON, "warning")),
    (LockLingers, Policy(Pace.SOON, "warning")),
    (ConnectionFailed, Policy(Pace.SOON, "warning")),
    (PenstockError, Policy(Pace.SOON, "error")),
    (Exception, Policy(Pace.SOON, "error")),
)


def policy_for(error: BaseException) -> Policy:
    """The row for an error: the first that fits, most special first."""
    for kind, policy in _TABLE:
        if isinstance(error, kind):
            return policy
    raise TypeError(f"no policy for {type(error).__name__}: it isn't an ordinary error")

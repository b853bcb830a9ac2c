"""The times that follow from LEADER_TIMEOUT_S."""

from __future__ import annotations

from typing import NamedTuple


class Timings(NamedTuple):
    """How LEADER_TIMEOUT_S is divided.

    A request that leaves while the line is fresh is over before the server can give the lock to another:
    `freshness_s + answer_s` stays below the time-out. (Freshness is asked when the connection is up.)
    """

    timeout_s: float
    """The connection's wal_sender_timeout: how long the server waits for a silent leader."""
    freshness_s: float
    """How old the last sign of leadership may be when a request leaves."""
    connect_s: float
    """To connect to Kinesis, unless KINESIS_CONNECT_TIMEOUT_S says otherwise."""
    answer_s: float
    """For Kinesis to answer, unless KINESIS_READ_TIMEOUT_S says otherwise."""
    watch_interval_s: float
    """Between two looks of the watchdog."""
    heartbeat_s: float
    """Between two status updates when nothing else asks for one: well below what the server waits for."""

    @classmethod
    def of(cls, timeout_s: float) -> Timings:
        """The division for a LEADER_TIMEOUT_S."""
        return cls(
            timeout_s=timeout_s,
            freshness_s=0.3 * timeout_s,
            connect_s=0.15 * timeout_s,
            answer_s=0.4 * timeout_s,
            watch_interval_s=min(1.0, 0.1 * timeout_s),
            heartbeat_s=min(1.0, 0.25 * timeout_s),
        )

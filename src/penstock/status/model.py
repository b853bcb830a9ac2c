"""Status: what a service does at one moment. `/metrics`, the page and `penstock status` are made of it."""

from __future__ import annotations

import msgspec

from penstock.status.outside_reading import OutsideReading


class SlotReading(msgspec.Struct, frozen=True):
    """The replication slot, as the server had it."""

    read_age_s: float
    """How long ago; since the start if it was never read."""
    exists: bool | None = None
    """None: never read."""
    is_active: bool = False
    """Whether a walsender uses it."""
    is_lost: bool = False
    """Whether its WAL is gone."""
    retained_bytes: int = 0
    """WAL that it keeps on the server."""
    safe_bytes: int | None = None
    """WAL that may still be written before it is lost; None: any amount."""
    confirmed_lsn: int = 0
    restart_lsn: int = 0


class CaptureReading(msgspec.Struct, frozen=True):
    """A leadership of `penstock capture`."""

    line_age_s: float
    """Since the last sign of leadership."""
    received_lsn: int
    """The highest position heard of."""
    frontier_lsn: int
    """Everything at or below it is durable."""
    pending: int
    """Entries between the frontier and the newest frame."""
    queue_events: int
    inflight_bytes: int
    """Read and not yet durable."""
    records: int
    """Accepted by Kinesis since the process began."""
    oldest_lsn: int = 0
    """The commit LSN of the oldest change that is not delivered."""
    oldest_committed_at: float | None = None
    """When it was committed, in Unix seconds on the server's clock; None: everything is delivered."""
    quarantined: int = 0
    """Records stored in quarantine since the process began."""
    pending_limit: int = 0
    """Of `pending`; reading pauses there, as with the next two."""
    queue_limit: int = 0
    inflight_limit_bytes: int = 0


class ShapeReading(msgspec.Struct, frozen=True):
    """One shape."""

    name: str
    state: str
    offset_lsn: int
    """What its table holds; below 0: it has none yet."""
    lag_bytes: int
    """WAL between what its table holds, or without a table the frontier, and what was received; 0 if it has
    everything.
    """
    lag_s: float
    """Age of the oldest transaction that is not in its table."""
    rows: int
    """Changes applied and rows copied in this leadership."""
    error: str | None
    """The sentence of its last attempt, if that failed."""
    flushed_s: float | None = None
    """Since something was last written to its table; None: not in this leadership."""
    due_s: float | None = None
    """Until its next job is due; None: it has nothing to do."""
    waits_for: str | None = None
    """What its snapshot waits for, in words."""


class ShapesReading(msgspec.Struct, frozen=True):
    """A leadership of `penstock shapes`."""

    line_age_s: float
    """Since the last sign of leadership."""
    received_lsn: int
    """The highest position heard of."""
    frontier_lsn: int
    """Everything at or below it is in the tables."""
    transactions: int
    """Read in this leadership."""
    changes: int
    """Put into the log by this leadership."""
    log_bytes: int
    log_is_full: bool
    """Whether reading waits for room."""
    shapes: list[ShapeReading]
    quarantined: int = 0
    """Records of a stream as storage that were stored in quarantine since the process began."""


class SourceReading(msgspec.Struct, frozen=True):
    """The marked stream that shapes read instead of a slot."""

    stream: str
    of_slot: str
    """The slot of the capture that writes it."""
    retention_s: float | None = None
    """For how long it keeps records; None: nobody has asked it."""
    needed_s: float = 0.0
    """Age of the oldest record that some shape still needs; 0: none does."""

    @property
    def expires_s(self) -> float | None:
        """Until changes expire that some shape still needs; None: it can't be told."""
        return None if self.retention_s is None else self.retention_s - self.needed_s


class Status(msgspec.Struct, frozen=True):
    """All of it. What only a leader knows is None while another leads, or nobody."""

    service: str
    """`capture` or `shapes`."""
    phase: str
    ready: bool
    reasons: list[str]
    """Why it isn't ready."""
    slot: SlotReading
    leader: str | None = None
    """Who leads, while this process stands by."""
    behind_s: float = 0.0
    """Since the commit of the oldest change that is not delivered; for shapes: since it was read."""
    frontier_age_s: float = 0.0
    """Since when something is pending without headway, over all leaderships of this process."""
    rate_per_s: float | None = None
    """Records accepted a second in the last ten; for shapes: changes read. None: it can't be told yet."""
    clock_offset_s: float | None = None
    """The server's clock minus ours."""
    credentials_expire_s: float | None = None
    """Until the AWS credentials at hand expire; None: never, or none are known."""
    capture: CaptureReading | None = None
    shapes: ShapesReading | None = None
    source: SourceReading | None = None
    """Set if changes come from a stream: then there need not be a slot."""
    outside: OutsideReading | None = None
    """Set if no process was asked; `ready` then says that nothing is seen to be wrong."""

    @property
    def counted(self) -> int | None:
        """What `rate_per_s` is the rate of; None while this process doesn't lead."""
        if self.capture is not None:
            return self.capture.records
        return None if self.shapes is None else self.shapes.changes

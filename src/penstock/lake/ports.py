"""Ports: what Spark does for a shape, and where it reads the changes. The service knows no Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from penstock.model.log_offset import LogOffset
from penstock.model.shape import Shape
from penstock.postgres.catalog.partition_bounds import Bounds
from penstock.postgres.catalog.table_facts import ColumnFacts, TableFacts
from penstock.postgres.snapshot.export import SnapshotPart

if TYPE_CHECKING:
    import pyarrow as pa


class ChangePart(Protocol):
    """Some changes, in the order of the stream. It may be sent to another process, and read there."""

    @property
    def up_to(self) -> LogOffset:
        """Changes behind this are not in it."""

    @property
    def size_bytes(self) -> int:
        """How many bytes there are to read."""

    @property
    def wanted_bytes(self) -> int:
        """How many of them are changes that were asked for, at most."""

    def behind(self, offset: LogOffset) -> Self:
        """What it holds behind an offset."""

    def read(self) -> Iterator[pa.RecordBatch]:
        """Batches with the columns `tx_offset`, `op_offset` and `payload`. Blocks; SegmentUnreadable."""


class TableState(NamedTuple):
    """A shape's table in the storage."""

    exists: bool
    tx_offset: int | None
    """The offset of its last commit by us, for this database system; None if it has none."""
    foreign: str | None = None
    """What others may have done to its rows since, in words."""


class JobDone(NamedTuple):
    """A job that ended well."""

    tx_offset: int
    """Read back from the table."""
    rows: int
    """Changes applied, or rows copied."""
    needs_upkeep: bool = False
    """Whether the table's upkeep is due, as the table itself tells."""


class ShapeJobs(Protocol):
    """All calls block for as long as Spark works: each runs in a thread. One at a time for a shape.

    Any of them raises SparkGone if that is why it failed.
    """

    def state(self, shape: Shape) -> TableState:
        """Look at the shape's table."""

    def flush(
        self,
        shape: Shape,
        facts: TableFacts,
        ranges: Sequence[ChangePart],
        up_to: int,
        added: Sequence[ColumnFacts] = (),
    ) -> JobDone:
        """Apply these changes, whole transactions up to `up_to`, in one commit.

        `facts` are those of the table as ours has it, `added` columns included, which ours lacks so far, or
        has with fewer digits.
        TableAltered if the log has changes of a table that was altered since, ChangesUnusable if some can't
        be applied for another reason, ForeignCommit if others may have changed the table's rows.
        """

    def snapshot(
        self, shape: Shape, facts: TableFacts, parts: Sequence[SnapshotPart], snapshot: str, tx_offset: int
    ) -> JobDone:
        """Replace the table by the rows that an exported snapshot sees, in one commit."""

    def delete_within(self, shape: Shape, facts: TableFacts, bounds: Bounds, tx_offset: int) -> int:
        """Delete the rows that satisfy these, in one commit that leaves the table's offset; how many.

        No commit if there are none. TableConflict if the table is not at `tx_offset`, ForeignCommit if others
        may have changed its rows.
        """

    def may_widen(self, shape: Shape) -> bool:
        """Whether columns of the shape's table can get more digits in place."""

    def upkeep(self, shape: Shape) -> None:
        """Put small files together and delete old ones, if that is due."""

    def cancel(self) -> None:
        """End what runs; those who wait for it get an error."""

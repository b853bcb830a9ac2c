"""The doors of the lake: what is done for a shape, of which changes, and in which table.

The service knows `ShapeJobs`, and `penstock verify` `VerifyJobs`; neither knows Spark. The jobs know a
`LakeTable`, and no storage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, runtime_checkable

from penstock.lake.comparison import Comparison, Keys, PostgresAt, TableAt
from penstock.model.log_offset import LogOffset
from penstock.model.relation import Relation
from penstock.model.shape import Shape
from penstock.postgres.catalog.partition_bounds import Bounds
from penstock.postgres.catalog.table_facts import ColumnFacts, TableFacts
from penstock.postgres.snapshot.export import SnapshotPart

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column as Condition
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from penstock.decoding.rows import Column
    from penstock.lake.fold.apply import NetChanges


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
        """Batches with the columns `tx_offset`, `op_offset` and `payload`. Blocks.

        Raises what its source raises if that doesn't have it any more.
        """


@runtime_checkable
class SharedPart(ChangePart, Protocol):
    """A part of a place that other shapes read, too."""

    @property
    def place(self) -> str:
        """Parts with the same name stand in the same place; empty: nobody else reads it."""

    @property
    def place_schema(self) -> pa.Schema:
        """The columns of `read_place`; `relation` and `tx_offset` are among them."""

    @property
    def wanted(self) -> frozenset[Relation]:
        """Whose changes are wanted of it."""

    @property
    def after(self) -> LogOffset:
        """Changes at or below this are not wanted of it."""

    def read_place(self) -> Iterator[pa.RecordBatch]:
        """All that this part of the place has, whoever wants it. Blocks."""

    def select(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """What is wanted of a batch of `read_place`, as `read` gives it."""


class Position(NamedTuple):
    """How far a table is."""

    timeline: int
    offset: int
    """The commit LSN of the last transaction in it."""


class TableVersion(NamedTuple):
    """A version of a table."""

    version: int
    """-1: there is no table."""
    position: Position | None

    @property
    def offset(self) -> int | None:
        """How far it is."""
        return None if self.position is None else self.position.offset


KeyRanges = Mapping[str, Sequence[tuple[Any, Any]]]
"""By key column, where the keys of a batch lie: each of its values is in one of the column's ranges."""


class LakeTable(Protocol):
    """A shape's table in a storage, whose commits carry their offset.

    It belongs to one session and does one thing at a time; all of it blocks. What Spark raises comes out as
    one of our own errors.
    """

    @property
    def path(self) -> str:
        """Where it is."""

    @property
    def needs_upkeep(self) -> bool:
        """Whether upkeep is due, by the last look at the table. Costs nothing."""

    def exists(self) -> bool:
        """Whether there is a table."""

    def rows(self) -> DataFrame:
        """The table as it is now."""

    def rows_at(self, version: int) -> DataFrame:
        """The table as it was in a version."""

    def schema(self) -> StructType:
        """Its columns."""

    def read_state(self) -> TableVersion:
        """Its newest version, and where that is."""

    def state_to_build_on(self) -> TableVersion:
        """As `read_state`. ForeignCommit if others have changed rows since our last commit."""

    def foreign_commit(self, state: TableVersion) -> str | None:
        """What others may have done to the rows behind our last commit, in words; None if nothing."""

    def may_be_news(self) -> bool:
        """Whether it may have another version than the last look found. Reads nothing."""

    def rows_near(self, key: Sequence[str], ranges: KeyRanges) -> int:
        """About how many rows lie in files that may hold one of these keys; of all files without ranges."""

    def bytes_near(self, key: Sequence[str], ranges: KeyRanges) -> int:
        """How large these files are together."""

    def file_rows(self, key: Sequence[str]) -> int:
        """How many rows a file that is written should have at most."""

    def cuts(self, key: Sequence[str]) -> Mapping[str, Sequence[Any]]:
        """By key column, some of the values at which files begin, in order."""

    def lacking(self, columns: Sequence[Column]) -> list[Column]:
        """Those of the columns that it doesn't have. TableAltered if it has one with another type."""

    def may_widen(self) -> bool:
        """Whether columns can get wider types while its files stay."""

    def can_have_more_digits(self) -> bool:
        """Whether columns can get more digits in place, in whatever way."""

    def widen(self, columns: Sequence[Column]) -> bool:
        """Give those of the columns that it has with fewer digits their types of now; whether any has.

        A commit of its own, which changes no value and has no offset. If that one can't be made as things
        are, nothing is done.
        """

    def change_types(self, types: Mapping[str, str]) -> None:
        """Give columns wider types, in a commit that changes no value and has no offset."""

    def can_go_on_to(self, version: int) -> bool:
        """Whether a commit with this offset would be the next one on the same timeline."""

    def merge(self, net: NetChanges, version: int | None, *, made_from: int | None = None) -> int | None:
        """Apply a batch in one commit with the offset `version`; the offset that the table then has.

        A table that is already there, or further, is left as it is. Without a version the commit leaves the
        offset. TableConflict if another writer was faster, also since the table's version `made_from`.
        """

    def delete(self, condition: Condition, offset: int) -> int:
        """Delete rows in one commit that leaves the table's offset, which has to be this; how many.

        No commit if there are none. TableConflict if the table is elsewhere.
        """

    def overwrite_from(self, rows: DataFrame, version: int, key: Sequence[str]) -> int:
        """Replace the table in one commit with the offset `version`, or make it; that offset.

        OffsetRefused, before any work, if it is already there or further on this timeline.
        """

    def upkeep(self) -> bool:
        """Put small files together and delete old ones, if that is due; whether it was."""


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
    quarantined: int = 0
    """Changes that no record of a stream can hold, and that are in quarantine now."""


class ShapeJobs(Protocol):
    """All calls block for as long as Spark works: each runs in a thread. One at a time for a shape.

    Any of them raises SparkGone if that is why it failed.
    """

    def state(self, shape: Shape, known: int | None = None) -> TableState:
        """Look at the shape's table. `known`: the commit LSN up to which it was seen before."""

    def lead(self, may_write: Callable[[], bool]) -> None:
        """This process leads from here on, for as long as that says so: only then anything is written."""

    def end(self) -> None:
        """It leads no more, and nothing runs: nothing is written from here on."""

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

    def foreign(self, shape: Shape) -> str | None:
        """What others may have done to the rows of the shape's table since our last look, in words.

        Where nobody has written since, this looks for names in the table's log and reads nothing.
        """

    def may_widen(self, shape: Shape) -> bool:
        """Whether columns of the shape's table can get more digits in place."""

    def upkeep(self, shape: Shape) -> None:
        """Put small files together and delete old ones, if that is due."""

    def cancel(self) -> None:
        """End what runs; those who wait for it get an error."""

    def cancel_of(self, shape: Shape) -> None:
        """End what runs of this shape alone; who waits for it gets an error."""


class VerifyJobs(Protocol):
    """All calls block while Spark works: each runs in a thread. One at a time for a shape."""

    def look(self, shape: Shape, facts: TableFacts) -> TableAt:
        """The shape's table as it is now. CannotCompare if it isn't there, or lacks columns."""

    def compare(self, shape: Shape, postgres: PostgresAt, lake: TableAt) -> Comparison:
        """Compare all rows."""

    def sort_out(
        self, shape: Shape, facts: TableFacts, keys: pa.Table, frames: Sequence[bytes] | None
    ) -> Keys:
        """Sort keys by these frames, which are all changes of the table; None: too many."""

    def compare_keys(self, shape: Shape, postgres: PostgresAt, lake: TableAt, keys: Keys) -> Comparison:
        """Compare the rows with the keys that are clear: those of `moved` with their last change."""

"""Where the changes of shapes come from. Ports: the leadership and the jobs know no source."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from penstock.lake.ports import ChangePart
from penstock.model.log_offset import LogOffset
from penstock.model.relation import Relation
from penstock.postgres.catalog.table_tree import Tree


class Feed(Protocol):
    """Brings changes in, and tells their source how far the tables are. Each leadership has its own."""

    @property
    def received_lsn(self) -> int:
        """The highest position heard of."""

    @property
    def confirmed_lsn(self) -> int:
        """The highest position that the source was told to be in the tables."""

    @property
    def is_paused(self) -> bool:
        """Whether it waits for room."""

    def stalled(self, now: float, after_s: float, waits_since: float | None) -> str | None:
        """Why nothing has come for so long, in words; None if something has, or that need not be.

        `waits_since`: since when somebody has been waiting for more; None: nobody waits.
        """

    async def read(self) -> None:
        """Bring changes in until cancelled, or until the source is lost."""

    async def report(self) -> None:
        """Tell the source again and again, until cancelled."""

    def tell_if_moved(self) -> None:
        """Tell the source if there is news."""

    def last_word(self) -> None:
        """Tell the source now, and ask for an answer."""


class Backlog(Protocol):
    """Where changes are kept until the tables have them: a log on disk, or a stream and what is known of it.

    `flush` and `trim` may block: call them in a thread. The rest may be called at any time meanwhile.
    """

    @property
    def last_seen_txn_offset(self) -> LogOffset:
        """The newest commit that was heard of."""

    @property
    def last_persisted_txn_offset(self) -> LogOffset:
        """The newest commit up to which readers may read."""

    @property
    def size_bytes(self) -> int:
        """How much is kept."""

    @property
    def is_over_limit(self) -> bool:
        """Whether reading should pause."""

    @property
    def is_half_full(self) -> bool:
        """Whether who holds it for no good reason should let go."""

    def is_flush_due(self, now: float) -> bool:
        """Whether `flush` has something to do that should not wait."""

    def flush(self, now: float) -> LogOffset | None:
        """Let readers read all that was heard of; the new end if that has moved."""

    def trim(self, offset: LogOffset) -> int:
        """Forget what lies at or below an offset; how many parts."""

    def read_plan(
        self, relations: Collection[Relation], after: LogOffset, up_to: LogOffset
    ) -> Sequence[ChangePart]:
        """Where a reader finds the changes of these relations, in order."""

    def boundary_within(self, relations: Collection[Relation], after: LogOffset, max_bytes: int) -> LogOffset:
        """The end of a commit such that a reader of these relations gets about that much up to it."""


class Routes(Protocol):
    """Which changes are for which shapes, by what is known of the followed tables."""

    @property
    def is_certain(self) -> bool:
        """Whether the catalog was looked at, and nothing of that waits to be judged."""

    def is_gone(self, shape: str) -> bool:
        """Whether there is no table of the name that the shape follows."""

    def relations_of(self, table: Relation) -> frozenset[Relation]:
        """The relations under which changes of a followed table come."""

    def copy_begins(self, shape: str, cut_lsn: int) -> None:
        """A copy has its cut: what commits before it need not come any more."""

    def tree_of(self, table: Relation, shape: str) -> Tree:
        """A shape's table as it was last judged: what may be kept in the registry."""

"""RewriteWatch: was a table rewritten, or only truncated?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from typing import NamedTuple

from penstock.shapes.change_log_index import Relation
from penstock.shapes.table_tree import Member


class _Suspect(NamedTuple):
    """A relation whose filenode has changed, and the stream had no TRUNCATE of it so far."""

    table: Relation
    wal_lsn: int
    truncates: int


class RewriteWatch:
    """Compares looks at the catalog with the TRUNCATEs of the stream. Part of a Collector.

    The problem. A rewrite may have been to and from UNLOGGED, and what came in between is nowhere; nothing in
    the stream tells. TRUNCATE gives a table a new filenode too, and is in the stream.

    Rules.
    1. A new filenode with another layout or another TOAST table is a rewrite.
    2. With the same TOAST table it was a TRUNCATE.
    3. Where there is no TOAST table to tell, it was a TRUNCATE if the stream had one since the look before.
       If not, it is waited until the stream has come to where the WAL was at the look: still none, and it was
       a rewrite.
    """

    def __init__(self) -> None:
        self._truncates: Counter[Relation] = Counter()
        self._truncates_at_look: Counter[Relation] = Counter()
        self._suspects: dict[Relation, _Suspect] = {}

    @property
    def doubtful(self) -> Set[Relation]:
        """The followed tables of which it is not known yet."""
        return {suspect.table for suspect in self._suspects.values()}

    def truncated(self, relation: Relation) -> None:
        """The stream has a TRUNCATE of this relation."""
        self._truncates[relation] += 1

    def compare(self, table: Relation, old: Member, new: Member, wal_lsn: int) -> str | None:
        """The table or a partition of it, at two looks; returns what is certain at once, in words."""
        if new.filenode == old.filenode:
            return None
        if new.layout != old.layout or new.toast != old.toast:
            return _rewritten(new.relation)
        seen = self._truncates[new.relation]
        if not new.toast and seen == self._truncates_at_look[new.relation]:
            self._suspects[new.relation] = _Suspect(table, wal_lsn, seen)
        return None

    def proven(self, received_lsn: int) -> dict[Relation, str]:
        """Followed tables for which the stream, read up to here, has no TRUNCATE that would explain it."""
        found = {}
        for relation, suspect in list(self._suspects.items()):
            explained = self._truncates[relation] != suspect.truncates
            if explained or received_lsn >= suspect.wal_lsn:
                del self._suspects[relation]
            if not explained and received_lsn >= suspect.wal_lsn:
                found[suspect.table] = _rewritten(relation)
        return found

    def end_look(self) -> None:
        """All was compared: later TRUNCATEs belong to the next look."""
        self._truncates_at_look = self._truncates.copy()


def _rewritten(relation: Relation) -> str:
    return (
        f"{relation} was rewritten (ALTER TABLE, VACUUM FULL, CLUSTER), and may have been UNLOGGED meanwhile"
    )

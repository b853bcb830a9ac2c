"""StreamRoutes: which changes of a stream are for which shapes, though the catalog is ahead of the stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from penstock.model.relation import Relation
from penstock.model.snapshot_again import SnapshotAgain
from penstock.postgres.catalog.table_tree import Member, Tree
from penstock.shapes.following.followed_tables import FollowedTables
from penstock.shapes.following.rewrites import judge


class _Look(NamedTuple):
    """A table as a look has found it that is to be judged."""

    tree: Tree | None
    """None: there is no table of that name."""
    lsn: int
    """The server's WAL was here then, or before."""


class StreamRoutes:
    """Compares looks at the catalog, and judges them when the stream is there. Knows no clock or socket.

    The problem. The catalog is of now, and the stream may be hours old: changes below a look are of tables as
    they were before it, and what explains the look may be yet to come.

    1. A table is known as it was last judged. The first look that differs waits until the stream has reached
       its LSN; looks behind it are compared with it later.
    2. Then it is judged. What isn't proved to be in the stream (`rewrites.judge`: doubts too) means that the
       table's shapes are snapshotted again. A copy whose cut is behind the look has all that it saw.
    3. Meanwhile changes are read as before. Partitions that only a look knows so far count, too.
    4. A table that is gone has no copies before a look finds one of its name.
    5. Shapes of one table may have been judged up to different looks when a crash came: the first look is
       held against each of them.
    """

    def __init__(
        self,
        shapes: Mapping[str, Relation],
        trees: Iterable[Tree],
        own_trees: Mapping[str, Tree] = MappingProxyType({}),
    ) -> None:
        """See FollowedTables."""
        self._tables = FollowedTables(shapes, trees, own_trees)
        self._waiting: dict[Relation, _Look] = {}
        self._has_looked = False
        self._reached_lsn = 0

    @property
    def is_certain(self) -> bool:
        """See Routes."""
        return self._has_looked and not self._waiting

    def is_waiting(self, table: Relation) -> bool:
        """Whether a look at this table waits for the stream."""
        return table in self._waiting

    @property
    def tables(self) -> Iterable[Relation]:
        """The followed tables."""
        return self._tables.followers.keys()

    def followers(self, table: Relation) -> frozenset[str]:
        """The shapes of a followed table."""
        return self._tables.followers[table]

    def is_gone(self, shape: str) -> bool:
        """See Routes."""
        return self._tables.is_gone(shape)

    def relations_of(self, table: Relation) -> frozenset[Relation]:
        """See Routes."""
        look = self._waiting.get(table)
        own = self._tables.own_trees_of(table)
        known = (self._tables.judged.get(table), None if look is None else look.tree, *own)
        return frozenset(member.relation for tree in known if tree is not None for member in _members(tree))

    def copy_begins(self, shape: str, cut_lsn: int) -> None:
        """See Routes."""
        self._tables.cuts[shape] = cut_lsn

    def tree_of(self, table: Relation, shape: str) -> Tree:
        """See Routes."""
        return self._tables.tree_of(table, shape)

    def look(self, trees: Iterable[Tree], wal_lsn: int) -> list[SnapshotAgain]:
        """The followed tables as the catalog has them now, without those that it no longer has."""
        now = {tree.table.relation: tree for tree in trees}
        self._has_looked = True
        for table in self._tables.followers:
            if table in self._waiting:
                continue
            tree = now.get(table)
            if not self._is_known(table, tree) and (tree is not None or table not in self._tables.gone):
                self._waiting[table] = _Look(tree, wal_lsn)
        return self.reached(self._reached_lsn)

    def reached(self, lsn: int) -> list[SnapshotAgain]:
        """Every transaction with a commit LSN below this was taken; gives what is to be snapshotted."""
        self._reached_lsn = max(lsn, self._reached_lsn)
        ready = [table for table, look in self._waiting.items() if look.lsn <= self._reached_lsn]
        return [again for table in ready for again in self._judge(table)]

    def _is_known(self, table: Relation, tree: Tree | None) -> bool:
        if tree is None or table in self._tables.gone:
            return False
        return all(tree == each for each in (self._tables.judged[table], *self._tables.own_trees_of(table)))

    def _judge(self, table: Relation) -> list[SnapshotAgain]:
        look, tables = self._waiting.pop(table), self._tables
        names = tables.followers[table]
        reasons: dict[str, str] = {}
        for name in sorted(names):
            if tables.cuts.get(name, 0) >= look.lsn:
                continue
            if table in tables.gone:
                reasons[name] = f"there is a table {table} again"
            elif reason := self._reason(tables.tree_of(table, name), look):
                reasons[name] = reason
        if look.tree is None:
            tables.gone = tables.gone | {table}
        else:
            tables.gone = tables.gone - {table}
            tables.judged[table] = look.tree
        for name in names:
            tables.own_trees.pop(name, None)
        return [SnapshotAgain(name, reason) for name, reason in reasons.items()]

    def _reason(self, before: Tree, look: _Look) -> str:
        """Why the table is not the one that it was, in words; empty if it is."""
        table, now = before.table.relation, look.tree
        judgement = judge(before, now, look.lsn, {})
        if judgement.again:
            return judgement.again
        # A slot's reader counts and hashes rows at one position to settle a doubt. Here the catalog and the
        # server's rows are ahead of the stream by any time: only a copy is right.
        if judgement.departures:
            return judgement.departures[0].reason
        if judgement.doubts:
            return judgement.doubts[0].suspicion
        assert now is not None, "that was judged"
        if _told_by_layout(before) != _told_by_layout(now):
            return f"{table} was altered"
        return ""


def _members(tree: Tree) -> tuple[Member, ...]:
    return (tree.table, *tree.partitions)


def _told_by_layout(tree: Tree) -> Tree:
    """The tree without what was judged before: files, and the key, which a registry may not know.

    Another key is another `identity`.
    """
    return tree._replace(
        key=(),
        table=tree.table._replace(filenode=0),
        partitions=tuple(member._replace(filenode=0) for member in tree.partitions),
    )

"""FollowedTables: who follows each table, and as what each was last judged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from types import MappingProxyType

from penstock.model.relation import Relation
from penstock.model.snapshot_again import SnapshotAgain
from penstock.postgres.catalog.table_tree import Tree


class FollowedTables:
    """What is known of the tables that shapes follow, wherever their changes come from.

    1. A table is known as it was last judged; one without a tree is *gone*.
    2. Shapes of one table may have been judged up to different looks when a crash came: those have a tree of
       their own until all of them are judged again.
    3. A copy that has begun in this leadership has all that was committed before its cut.
    """

    def __init__(
        self,
        shapes: Mapping[str, Relation],
        trees: Iterable[Tree],
        own_trees: Mapping[str, Tree] = MappingProxyType({}),
    ) -> None:
        """`shapes`: the table of each; `own_trees`: of shapes that were judged as another tree than that."""
        self.followers: dict[Relation, frozenset[str]] = {
            table: frozenset(name for name, followed in shapes.items() if followed == table)
            for table in shapes.values()
        }
        self.judged = {tree.table.relation: tree for tree in trees if tree.table.relation in self.followers}
        self.own_trees = dict(own_trees)
        self.gone: Set[Relation] = self.followers.keys() - self.judged.keys()
        self.cuts: dict[str, int] = {}
        """Of the last copy of each shape that was copied in this leadership."""

    def is_gone(self, shape: str) -> bool:
        """Whether the last look, or the start, found no table of the name that the shape follows."""
        return any(shape in self.followers[table] for table in self.gone)

    def tree_of(self, table: Relation, shape: str) -> Tree:
        """A shape's table as it was last judged, or was at the start."""
        return self.own_trees.get(shape, self.judged[table])

    def own_trees_of(self, table: Relation) -> list[Tree]:
        """Those of the table's shapes that have one."""
        return [tree for name, tree in self.own_trees.items() if name in self.followers[table]]

    def shapes_of(self, tables: Iterable[Relation]) -> Iterator[str]:
        """All shapes that follow any of these."""
        return (shape for table in tables for shape in self.followers[table])

    def again(self, reasons: Mapping[Relation, str]) -> list[SnapshotAgain]:
        """All shapes of these tables are to be snapshotted again."""
        return [
            SnapshotAgain(shape, reason)
            for table, reason in reasons.items()
            for shape in sorted(self.followers[table])
        ]

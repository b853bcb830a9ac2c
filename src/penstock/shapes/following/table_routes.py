"""TableRoutes: the followed tables that each relation is, or is a partition of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Final

from penstock.decoding.decoder import Decoder
from penstock.model.change import Action, Change
from penstock.model.relation import Relation
from penstock.postgres.catalog.table_tree import Tree

_MOST_ROUTES: Final = 20_000


class TableRoutes:
    """Where the changes of a relation belong. Frames name partitions, and shapes follow their roots.

    1. `known` has the route of each relation that a tree has or that was asked for. An empty one is nobody's.
    2. A partition has exactly the columns of its root, and its updates and deletes have the root's key, or no
       shape can follow it. So a relation without a route whose change has other columns than any partitioned
       table, or lacks its key, is nobody's without asking. A TRUNCATE tells nothing, and is asked for.
    3. A relation that was learned as a partition, and that two later looks don't have, was detached or
       dropped in between. The first of them may have begun before it was learned.
    4. Tables that are rebuilt lose the routes of what is no longer part of them. The others keep everything:
       their changes may be in the log under a name that only a look-up brought.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self.known: dict[Relation, frozenset[Relation]] = {}
        self._layouts: set[frozenset[str]] = set()
        """The columns that partitions have, or had; empty: not known."""
        self._keys: dict[frozenset[str], frozenset[str]] = {}
        """Of each layout, the columns that are surely in a change of an existing row."""
        self._learned: dict[Relation, bool] = {}
        """Partitions that no look has had yet; whether one has lacked it."""

    @property
    def learned(self) -> Set[Relation]:
        """Partitions that no look has had yet."""
        return self._learned.keys()

    def relations_of(self, table: Relation) -> frozenset[Relation]:
        """The relations under which changes of a followed table come."""
        return frozenset(relation for relation, tables in self.known.items() if table in tables)

    def may_be_partition(self, change: Change) -> bool:
        """Whether a change of a relation without a route may be of a partition."""
        if not self._layouts or frozenset() in self._layouts:
            return bool(self._layouts)
        named = self._decoder.columns(change.payload)
        if named is None or change.action is Action.TRUNCATE:
            return True
        columns = frozenset(f"{column.name} {column.type}" for column in named)
        return columns in self._layouts or (
            change.action is not Action.INSERT
            and any(self._keys[layout] <= columns <= layout for layout in self._layouts)
        )

    def learn(self, relation: Relation, tables: frozenset[Relation]) -> None:
        """The catalog's answer: the followed tables among the relation and its ancestors."""
        self.known[relation] = tables
        if tables - {relation}:
            self._learned[relation] = False

    def lost(self, now: Iterable[Tree]) -> dict[Relation, str]:
        """The tables whose learned partitions are not in this look, and why that matters."""
        there = {member.relation for tree in now for member in (tree.table, *tree.partitions)}
        reasons = {}
        for relation, was_missed in list(self._learned.items()):
            if relation in there or was_missed:
                del self._learned[relation]
            else:
                self._learned[relation] = True
            if relation not in there and was_missed:
                for table in self.known.get(relation, frozenset()) - {relation}:
                    reasons[table] = f"{relation}, a partition of {table}, was detached or dropped"
        return reasons

    def add(self, trees: Mapping[Relation, Tree], own_trees: Iterable[Tree]) -> None:
        """The followed tables as the catalog has them, and as single shapes know them."""
        for tree in (*trees.values(), *own_trees):
            for member in (tree.table, *tree.partitions):
                before = self.known.get(member.relation, frozenset())
                self.known[member.relation] = before | {tree.table.relation}
        # Also what they had before: the stream may be behind.
        now = {frozenset(tree.columns) for tree in trees.values() if tree.is_partitioned}
        self._layouts = (self._layouts - {frozenset()}) | now
        for tree in trees.values():
            layout, key = frozenset(tree.columns), frozenset(tree.key)
            self._keys[layout] = self._keys.get(layout, key) & key

    def take_away(self, relations: Iterable[Relation], table: Relation) -> None:
        """These are no partitions of the table any more."""
        for relation in relations:
            if left := self.known.pop(relation, frozenset()) - {table}:
                self.known[relation] = left

    def forget(self, tables: Set[Relation]) -> None:
        """These tables are rebuilt: what `add` doesn't bring back is asked for when it is met again."""
        keeps_others = len(self.known) <= _MOST_ROUTES
        routes = {}
        for relation, route in self.known.items():
            kept = route - tables
            if kept or (not route and keeps_others):
                routes[relation] = kept
        self.known = routes

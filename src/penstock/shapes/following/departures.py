"""Departures: partitions that were dropped or detached, whose rows can be deleted by their bounds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from typing import NamedTuple

from penstock.model.relation import Relation
from penstock.postgres.catalog.partition_bounds import Bounds, are_disjoint, bounds_of, is_default
from penstock.postgres.catalog.table_tree import Member, Tree


class Departure(NamedTuple):
    """A partition that a look no longer has, with all that was below it."""

    table: Relation
    """The followed one."""
    partition: Relation
    oid: int
    bounds: Bounds
    """What all of its rows satisfied, as long as it was a partition."""
    names: frozenset[Relation]
    """It, and what was below it."""
    others: frozenset[Relation]
    """Members that can't hold rows within its bounds, and haven't at any time since."""
    since_lsn: int
    """It was a partition at least until here."""
    look_lsn: int
    """The look that lacks it ended here or before."""

    @property
    def reason(self) -> str:
        """What is said where its table is copied after all."""
        return f"{_words(self.table, self.partition)}, and its rows can't be told from those of others"


def _words(table: Relation, partition: Relation) -> str:
    return f"{partition}, a partition of {table}, was detached or dropped"


def departures(
    before: Tree, now: Tree, gone: Collection[Member], since_lsn: int, look_lsn: int
) -> list[Departure] | str:
    """What is to be deleted for members that are gone; in words, why that can't be said."""
    table = before.table.relation
    oids = {member.oid for member in gone}
    # Of a partition that went with all below it, its own bounds say enough.
    found = []
    for top in (member for member in gone if member.parent not in oids):
        bounds = bounds_of(before, top)
        words = _words(table, top.relation)
        if bounds is None:
            return f"{words}, and its bounds can't be told exactly in the lake"
        if now.table.layout != before.table.layout:
            return f"{words}, and columns were altered"
        names = frozenset(each.relation for each in gone if _is_at_or_below(each, top, gone))
        others = _others(before, now, bounds, oids)
        if names & {member.relation for member in now.partitions}:
            return f"{words}, and another has its name"
        found.append(Departure(table, top.relation, top.oid, bounds, names, others, since_lsn, look_lsn))
    return found


def _is_at_or_below(member: Member, top: Member, gone: Collection[Member]) -> bool:
    parents = {each.oid: each.parent for each in gone}
    oid = member.oid
    while oid != top.oid and oid in parents:
        oid = parents[oid]
    return oid == top.oid


def _others(before: Tree, now: Tree, bounds: Bounds, gone: Set[int]) -> frozenset[Relation]:
    """Partitions beside it exclude its bounds by their own, but for DEFAULT; later ones may not."""
    beside = {
        member.relation
        for member in before.partitions
        if member.oid not in gone and not is_default(before, member)
    }
    known = {member.oid for member in before.partitions}
    apart = {
        member.relation
        for member in now.partitions
        if member.oid not in known and are_disjoint(bounds, bounds_of(now, member))
    }
    return frozenset({before.table.relation, *beside, *apart})


class Departures:
    """What is open, and which changes speak against it. Part of a Collector.

    The problem. The lake has a partition's rows when it goes, and no change deletes them. They all lie within
    its bounds. But deleting what lies there is right only if nothing else does: rows that came after it, into
    the DEFAULT partition or a new one; and if no change of the former partition was taken for one of the
    table. The stream doesn't say where in it the partition went: only that this was behind `since_lsn`, where
    it was one.

    Rules.
    1. `changed` notes the last transaction that changed each relation of a followed table.
    2. `is_quiet`: since `since_lsn` only members changed that can't hold rows within the bounds. Then all
       rows within them, in a table that holds what was taken until now and no more, are those that went.
    3. `is_left_alone`: the same of its own names only. It is asked last, when all tables are rid of the rows:
       what others bring later is applied on top of that, and is right.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[Relation, int], Departure] = {}
        self._changed: dict[Relation, int] = {}

    @property
    def open(self) -> list[Departure]:
        """Those whose rows may still be in some lake table."""
        return list(self._open.values())

    @property
    def tables(self) -> Set[Relation]:
        """The followed tables that they are about."""
        return {table for table, _ in self._open}

    def changed(self, relation: Relation, commit_lsn: int) -> None:
        """A transaction changes a relation of a followed table."""
        self._changed[relation] = commit_lsn

    def add(self, some: Iterable[Departure]) -> None:
        """A look has brought these."""
        for each in some:
            self._open.setdefault((each.table, each.oid), each)

    def drop(self, tables: Set[Relation]) -> None:
        """These tables begin again."""
        self._open = {key: each for key, each in self._open.items() if key[0] not in tables}

    def close(self, departure: Departure) -> bool:
        """It is settled, one way or the other; returns whether it was open."""
        return self._open.pop((departure.table, departure.oid), None) is not None

    def forget_changes_before(self, lsn: int) -> None:
        """No departure to come will ask for them."""
        oldest = min([lsn, *(each.since_lsn for each in self._open.values())])
        self._changed = {relation: at for relation, at in self._changed.items() if at >= oldest}

    def is_quiet(self, departure: Departure, routes: Mapping[Relation, Set[Relation]]) -> bool:
        """Whether nothing but the rows that went can lie within the bounds."""
        return not any(
            at >= departure.since_lsn
            and relation not in departure.others
            and departure.table in routes.get(relation, ())
            for relation, at in self._changed.items()
        )

    def is_left_alone(self, departure: Departure) -> bool:
        """Whether no change of the partition was taken since it was last known to be there."""
        return all(self._changed.get(name, -1) < departure.since_lsn for name in departure.names)

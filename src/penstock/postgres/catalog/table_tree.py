"""Tables and their partitions, as the catalog has them."""

from __future__ import annotations

from typing import NamedTuple

from penstock.model.relation import Relation


class Member(NamedTuple):
    """A table or partition as the catalog has it."""

    relation: Relation
    oid: int
    filenode: int
    """Changes with every rewrite, and with TRUNCATE; 0: it is partitioned and has no rows of its own."""
    layout: str
    """A digest of its pg_attribute rows, xmin included: changes with every ALTER of a column."""
    attached: bool = False
    """Whether it became a partition in a later transaction than the one that created it."""
    identity: str = ""
    """Its replica identity, the indexes that are its key or could stand for it, the labels of its enums, the
    attributes of its composite types."""
    toast: int = 0
    """The oid of its TOAST table, which changes with every rewrite and not with TRUNCATE; 0: it has none."""
    placed: str = ""
    """The versions of the rows that give it its name and its parent: others after a rename or DETACH, and
    back; empty: not known."""
    parent: int = 0
    """The oid of what it is a partition of; 0: the followed table itself, or not known."""
    bound: str = ""
    """Of a partition: its bound, as the catalog prints it."""
    split: tuple[str, ...] = ()
    """Of a partitioned one: `r`ange, `l`ist or `h`ash, and the columns. Empty if it is split by more than
    plain columns and their types' own operators and bytes, or not known."""


class Tree(NamedTuple):
    """A followed table and its partitions of all levels."""

    table: Member
    partitions: tuple[Member, ...] = ()
    is_partitioned: bool = False
    columns: tuple[str, ...] = ()
    """Of a partitioned table: each column's name and type, as frames have them; empty: not known."""
    has_children: bool = False
    """Whether tables inherit from it that are no partitions; here, too, so that a look shows it."""
    key: tuple[str, ...] = ()
    """Of a partitioned table: those of the columns that identify a row; empty: none do, or not known."""


class Found(NamedTuple):
    """The catalog's answer for a relation that it has."""

    ancestors: tuple[Relation, ...] = ()
    """The tables that it is a partition of, at any level."""
    attached: bool = False
    """As in Member."""

"""What the catalog says of a shape's table. It is kept in the registry, to be compared with later.

Everything here is a tuple of plain values, so that msgspec writes it as JSON and reads it back by type and
place: a new field stands behind the others, and has a default.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final, NamedTuple

from penstock.decoding.rows import Column
from penstock.model.relation import Relation
from penstock.postgres.catalog.table_tree import Tree

ORDINARY: Final = "r"
PARTITIONED: Final = "p"
PERMANENT: Final = "p"
FULL: Final = "f"
BY_INDEX: Final = "i"
UTF8: Final = "UTF8"

_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)


class ColumnFacts(NamedTuple):
    """A column, as pg_attribute has it."""

    name: str
    attnum: int
    """Tells a column from a later one of the same name."""
    type: str
    """As frames have it (`frame_type`); of a domain, the domain's name."""
    base: str = ""
    """What a domain stands on, down to a type that is none."""
    not_null: bool = False
    toastable: bool = False
    """Whether a long value may be stored outside of the row, and so be absent from an update's frame."""
    missing: str | None = None
    """What rows older than the column have in it, as the text that Postgres prints; None: null, or none."""
    labels: tuple[str, ...] = ()
    """Of an enum, of its arrays and of domains over them: each label, behind its oid."""
    is_virtual: bool = False
    """Whether it is generated and stored nowhere (PostgreSQL 18): only a query has its value, no change."""
    by_search_path: bool = False
    """Whether its values are, or hold, names that Postgres prints by `search_path`: regclass and its kin."""
    composites: str = ""
    """The attributes of all composite types in it: an `oid.attnum` each, with a `-` if it is dropped; empty:
    there are none, or it is not known."""

    @property
    def column(self) -> Column:
        """As the decoder takes it."""
        return Column(self.name, self.type, self.base, self.not_null, self.missing)


class IndexFacts(NamedTuple):
    """A valid unique index over not-null columns, without a predicate or an expression."""

    name: str
    columns: tuple[str, ...]
    is_primary: bool = False
    is_identity: bool = False
    """Whether REPLICA IDENTITY USING INDEX names it."""
    is_immediate: bool = True
    """Not deferrable: no two rows share a key even inside a transaction."""


class LeafFacts(NamedTuple):
    """A relation that holds rows: the table itself, or a partition."""

    relation: Relation
    kind: str = ORDINARY
    """pg_class.relkind."""
    persistence: str = PERMANENT
    """pg_class.relpersistence."""
    replica_identity: str = "d"
    """pg_class.relreplident: `d`efault, `n`othing, `f`ull, `i`ndex."""
    identity: tuple[str, ...] = ()
    """The columns that an update or delete carries of the old row; with FULL, every one and not listed."""
    has_toast: bool = False
    """Whether it has a TOAST table. Without one no value is ever absent from a frame."""

    def carries(self, key: Collection[str]) -> bool:
        """Whether updates and deletes tell which row they are about."""
        return self.replica_identity == FULL or set(key) <= set(self.identity)


class TableFacts(NamedTuple):
    """A relation that a shape names, with its partitions."""

    tree: Tree
    columns: tuple[ColumnFacts, ...]
    """In the order of the table, and behind them those that are `gone`."""
    indexes: tuple[IndexFacts, ...] = ()
    """Those that could be a key."""
    kind: str = ORDINARY
    """pg_class.relkind."""
    replica_identity: str = "d"
    """Its own. What frames carry is decided by the leaves'."""
    leaves: tuple[LeafFacts, ...] = ()
    has_children: bool = False
    """Whether tables inherit from it that are no partitions."""
    gone: tuple[str, ...] = ()
    """Those of the columns that are dropped, and kept in the lake's table; the catalog knows none."""
    attributes: int = 0
    """How many columns the table has ever had (pg_class.relnatts); 0: not known."""
    encoding: str = UTF8
    """The database's."""

    @property
    def relation(self) -> Relation:
        """Its name."""
        return self.tree.table.relation

    @property
    def key_index(self) -> IndexFacts | None:
        """The index whose columns frames identify a row by, usable or not.

        REPLICA IDENTITY USING INDEX wins over the primary key: a delete carries only that index's columns.
        """
        by_index = self.replica_identity == BY_INDEX
        return next((i for i in self.indexes if (i.is_identity if by_index else i.is_primary)), None)

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that identify a row; none if there is no usable key."""
        index = self.key_index
        return index.columns if index is not None and index.is_immediate else ()

    def wanted(self, names: Collection[str] | None) -> tuple[ColumnFacts, ...]:
        """The columns with these names that a shape can have, in the order of the table; None: all such."""
        return tuple(
            column
            for column in self.columns
            if not column.is_virtual and (names is None or column.name in names)
        )


def to_columns(facts: TableFacts, wanted: Collection[str] | None) -> list[Column]:
    """The wanted columns as the decoder takes them, in the order of the table; None: all."""
    return [column.column for column in facts.wanted(wanted)]


def missing_text(attmissingval: str) -> str:
    """The text of the only element of an array, as Postgres prints arrays."""
    element = attmissingval[1:-1]
    return _ESCAPE.sub(r"\1", element[1:-1]) if element.startswith('"') else element

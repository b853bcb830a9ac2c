"""The tables of a world: ordinary and partitioned ones, with every kind of key and replica identity."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.spark.oracle.kinds import KINDS


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    name: str
    kind: str
    not_null: bool = False

    def to_sql(self) -> str:
        """As CREATE TABLE wants it."""
        return f'"{self.name}" {KINDS[self.kind].type}{" NOT NULL" if self.not_null else ""}'


@dataclass(frozen=True, slots=True)
class Table:
    """A table; its key columns come first."""

    name: str
    columns: tuple[Column, ...]
    key_length: int
    full_identity: bool = False
    by_index: bool = False
    """Its key is a unique index, its replica identity, and no primary key."""
    leaves: tuple[int, ...] = ()
    """Of a partitioned table: the values of its last key column that have a leaf from the beginning."""
    nested_leaf: bool = False
    """The first leaf is partitioned in turn."""

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the key's columns."""
        return tuple(column.name for column in self.columns[: self.key_length])

    @property
    def toastable(self) -> bool:
        """Whether Postgres gives it a TOAST table."""
        return any(KINDS[column.kind].toastable for column in self.columns)

    def create(self) -> Iterator[str]:
        """The statements that make it."""
        name, key = self.name, ", ".join(f'"{each}"' for each in self.key)
        columns = ", ".join(column.to_sql() for column in self.columns)
        primary = "" if self.by_index else f", PRIMARY KEY ({key})"
        by = f' PARTITION BY LIST ("{self.key[-1]}")' if self.leaves else ""
        yield f"CREATE TABLE {name} ({columns}{primary}){by}"
        for column in self.columns:
            if column.kind == "long":
                # Out of line whatever it compresses to.
                yield f'ALTER TABLE {name} ALTER COLUMN "{column.name}" SET STORAGE EXTERNAL'
        if self.by_index:
            yield f"CREATE UNIQUE INDEX {self.name}_key ON {name} ({key})"
            yield f"ALTER TABLE {name} REPLICA IDENTITY USING INDEX {self.name}_key"
        if self.full_identity and not self.leaves:
            yield f"ALTER TABLE {name} REPLICA IDENTITY FULL"
        for value in self.leaves:
            yield from self.create_leaf(value)

    def create_leaf(self, value: int) -> Iterator[str]:
        """The statements that make a leaf."""
        leaf = f"{self.name}_{value}"
        nested = self.nested_leaf and value == self.leaves[0]
        by = f' PARTITION BY HASH ("{self.key[0]}")' if nested else ""
        yield f"CREATE TABLE {leaf} PARTITION OF {self.name} FOR VALUES IN ({value}){by}"
        made = [f"{leaf}_{part}" for part in (0, 1)] if nested else [leaf]
        if nested:
            for part, each in enumerate(made):
                yield (
                    f"CREATE TABLE {each} PARTITION OF {leaf} FOR VALUES WITH (MODULUS 2, REMAINDER {part})"
                )
        if self.full_identity:
            for each in made:
                yield f"ALTER TABLE {each} REPLICA IDENTITY FULL"

"""A world: a few tables and the shapes over them, in a schema of its own, with what its writers do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tests.spark.oracle.filters import Filter
from tests.spark.oracle.kinds import KINDS
from tests.spark.oracle.tables import Column, Table


@dataclass(frozen=True, slots=True)
class ShapeOf:
    """A shape over one of the world's tables."""

    table: int
    where: Filter | None = None
    columns: tuple[str, ...] | None = None
    flush_interval_ms: int = 50

    def to_toml(self, name: str, schema: str, table: Table) -> str:
        """As the shapes file wants it."""
        lines = [
            f'name = "{name}"',
            f'table = "{schema}.{table.name}"',
            f"flush_interval_ms = {self.flush_interval_ms}",
        ]
        if self.where is not None:
            lines.append(f"where = {_toml(self.where.to_sql('spark'))}")
        if self.columns is not None:
            lines.append(f"columns = [{', '.join(map(_toml, self.columns))}]")
        return "\n".join(lines)

    def holds_as(self, other: ShapeOf) -> bool:
        """Whether both hold the same; only the pace may differ."""
        return self._held() == other._held()

    def _held(self) -> tuple[object, ...]:
        where = self.where and self.where.to_sql("spark")
        return self.table, where, self.columns and frozenset(self.columns)

    def stored(self, table: Table) -> tuple[Column, ...]:
        """The columns that it keeps."""
        return tuple(
            column for column in table.columns if self.columns is None or column.name in self.columns
        )

    def query(self, schema: str, table: Table) -> str:
        """What it stands for; the columns are those of `stored`, in that order."""
        selected = ", ".join(
            f'"{column.name}"{"::text" if KINDS[column.kind].compared_as_text else ""}'
            for column in self.stored(table)
        )
        where = "" if self.where is None else f" WHERE {self.where.to_sql('postgres')}"
        return f"SELECT {selected} FROM {schema}.{table.name}{where}"


@dataclass(frozen=True, slots=True)
class Transaction:
    """Statements, and how they end. The session's search path is the world's schema."""

    statements: tuple[str, ...]
    commit: bool = True


@dataclass(frozen=True, slots=True)
class World:
    """What is generated: everything but the schema's name."""

    tables: tuple[Table, ...]
    shapes: tuple[ShapeOf, ...]
    writers: tuple[tuple[Transaction, ...], ...]
    """The transactions of each writer; each has a connection of its own."""
    turns: tuple[int, ...]
    """Whose statement is next, again and again from the beginning, until all is done."""
    reloaded: tuple[ShapeOf | None, ...] = ()
    """The shapes after the file was read again: None is gone, and those at the end are new."""


class Reload(NamedTuple):
    """What a service that reads another file has to find, by name."""

    added: list[str]
    removed: list[str]
    edited: list[str]
    altered: list[str]


def reload_of(before: Mapping[str, ShapeOf], now: Mapping[str, ShapeOf]) -> Reload:
    """What is different between two files; sorted."""
    other = sorted(name for name in before.keys() & now.keys() if before[name] != now[name])
    return Reload(
        sorted(now.keys() - before.keys()),
        sorted(before.keys() - now.keys()),
        [name for name in other if not before[name].holds_as(now[name])],
        [name for name in other if before[name].holds_as(now[name])],
    )


def _toml(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")

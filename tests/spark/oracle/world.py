"""A world: a few tables and the shapes over them, in a schema of its own, with what its writers do."""

from __future__ import annotations

import json
from dataclasses import dataclass

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


def _toml(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")

"""A table of `penstock bench shapes` with many columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from penstock.bench.spark_table import BenchTable
from penstock.decoding.rows import Column
from penstock.lake.jobs.changes import ShapeLayout
from penstock.model.relation import Relation

COLUMNS: Final = 300
UPDATES: Final = 3_000
_WIDE: Final = Relation("public", "wide")
_TYPES: Final = ("integer", "text", "bigint")


class WideTable(BenchTable):
    """A table of UPDATES rows with COLUMNS columns, the first of which is its key."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        columns = wide_columns()
        names = tuple(column.name for column in columns)
        layout = ShapeLayout(str(_WIDE), columns, ("id",), names, plugin="wal2json")
        super().__init__(spark, directory, _WIDE, layout)
        values = [f"cast(id as {column.lake.spark}) {column.name}" for column in columns]
        self.fill(self._spark.range(1, UPDATES + 1, 1, 1).selectExpr(*values))

    def update(self, value: int, *, without: Sequence[str] = ()) -> float:
        """Seconds that a flush of a transaction takes that sets all columns of every row but these."""
        carried = [column for column in self._layout.columns if column.name not in without]
        return self.flush(wide_updates(carried, value))


def wide_columns() -> tuple[Column, ...]:
    """The key, and numbers and texts in turn."""
    others = (Column(f"c{number}", _TYPES[(number - 1) % len(_TYPES)]) for number in range(1, COLUMNS))
    return (Column("id", "bigint", not_null=True), *others)


def wide_updates(carried: Sequence[Column], value: int) -> Iterator[bytes]:
    """What wal2json makes of an update of every row that sets these columns to a value, the key to itself."""
    key, *others = carried
    text = f'"a text with the number {value}"'
    cells = ",".join(_cell(column, text if column.type == "text" else str(value)) for column in others)
    for number in range(1, UPDATES + 1):
        identity = _cell(key, str(number))
        yield f'{{"action":"U","columns":[{identity},{cells}],"identity":[{identity}]}}'.encode()


def _cell(column: Column, value: str) -> str:
    return f'{{"name":"{column.name}","type":"{column.type}","value":{value}}}'

"""Whether a shape's table equals the query it stands for: value by value, exactly, and row by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from deltalake import DeltaTable

Row = tuple[str, ...]

_SHOWN = 5
_LONGEST_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Difference:
    """How a table differs from its query."""

    shape: str
    missing: tuple[Row, ...]
    """Rows of Postgres that the table lacks."""
    extra: tuple[Row, ...]
    """Rows of the table that Postgres lacks."""
    columns: str = ""
    """What is wrong with its columns."""

    def __str__(self) -> str:
        lines = [f"{self.shape} differs from Postgres{self.columns and ': ' + self.columns}"]
        for word, rows in (("missing", self.missing), ("extra", self.extra)):
            lines += [f"  {word}: ({', '.join(map(_short, row))})" for row in rows[:_SHOWN]]
            if len(rows) > _SHOWN:
                lines.append(f"  {word}: and {len(rows) - _SHOWN} more")
        return "\n".join(lines)


def exact(value: object) -> str:
    """A value as a text that differs if anything does: the sign of zero, a scale, a microsecond, the type."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return f"{value.astimezone(UTC).replace(tzinfo=None)!r} UTC"
    return repr(value)


def compare(
    shape: str, path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]
) -> Difference | None:
    """Compare a Delta table with the rows of a query; None if they are equal."""
    if not (path / "_delta_log").exists():
        return Difference(shape, (), (), "there is no table")
    table = DeltaTable(str(path)).to_pyarrow_table()
    if sorted(table.column_names) != sorted(columns):
        return Difference(shape, (), (), f"it has {table.column_names}, not {list(columns)}")
    lists = [table[name].to_pylist() for name in columns]
    found = Counter(tuple(map(exact, row)) for row in zip(*lists, strict=True))
    expected = Counter(tuple(map(exact, row)) for row in rows)
    missing, extra = expected - found, found - expected
    if not missing and not extra:
        return None
    return Difference(shape, tuple(missing.elements()), tuple(extra.elements()))


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}… ({len(text)})"

"""The second proof: what `penstock verify` says of the lake tables. Pure.

1. `verify` ends with 0 and speaks of every shape; it calls each of them equal, and all rows were judged.
2. Its counts agree with that: as many equal rows as Postgres has, and as the lake has.
3. No table is empty: two empty tables are equal, and prove nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class TableCounts(NamedTuple):
    """One table, row by row."""

    shape: str
    postgres: int = 0
    lake: int = 0
    equal: int = 0
    different: int = 0
    missing: int = 0
    extra: int = 0

    @property
    def agrees(self) -> bool:
        """Whether the table is there, and is what Postgres has."""
        return 0 < self.postgres == self.lake == self.equal and not any(
            (self.different, self.missing, self.extra)
        )


@dataclass(frozen=True, slots=True)
class LakeProof:
    """The counts of each table, and a line for each thing that is wrong."""

    tables: tuple[TableCounts, ...]
    findings: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings


def read(exit_code: int, answer: bytes, shapes: Sequence[str], last_words: Callable[[], str]) -> LakeProof:
    """Read verify's JSON; `last_words` gives the end of its log, in case there is none."""
    if not answer.strip():
        return LakeProof((), (f"penstock verify ended with {exit_code}; {last_words()}",))
    results: dict[str, Mapping[str, Any]] = {each["shape"]: each for each in json.loads(answer)}
    tables = [TableCounts(name, **(results.get(name, {}).get("counts") or {})) for name in shapes]
    findings = [line for table in tables for line in _findings(table, results.get(table.shape))]
    if exit_code and not findings:
        findings = [f"penstock verify ended with {exit_code}"]
    return LakeProof(tuple(tables), tuple(findings))


def _findings(table: TableCounts, result: Mapping[str, Any] | None) -> Iterator[str]:
    if result is None:
        yield f"{table.shape}: penstock verify says nothing of it"
        return
    if result["problem"] is not None:
        yield f"{table.shape}: {result['problem']}"
        return
    for difference in result["first"]:
        key = ", ".join(f"{name}={value}" for name, value in difference["key"].items())
        yield f"{table.shape}: {difference['verdict']} {key}"
    unjudged = result["changing"] + result["unchecked"]
    if unjudged:
        yield f"{table.shape}: {unjudged:,} rows were not judged"
    if not result["first"] and not (table.agrees and result["result"] == "equal"):
        yield f"{table.shape}: {table.postgres:,} rows in Postgres, {table.equal:,} of them equal in the lake"

"""What `penstock check` makes of the tables: whose changes would be lost, unordered or altered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.decoding.table_patterns import TablePattern, parse_patterns
from penstock.finding import Finding

NAMES_SHOWN: Final = 20


class CheckedTable(NamedTuple):
    """A permanent table, or the parent of a partitioned one."""

    schema: str
    table: str
    partitioned: bool
    """A parent: it holds no rows of its own."""
    partition: bool
    has_identity: bool
    """Its updates and deletes are sent."""
    has_key: bool
    """The catalog knows columns that identify a row."""
    has_floats: bool
    """A numeric, real or double precision column: it can hold NaN or Infinity."""

    @property
    def name(self) -> str:
        """`schema.table`."""
        return f"{self.schema}.{self.table}"


class TableRules(NamedTuple):
    """The settings that bear on tables."""

    add_tables: str | None
    filter_tables: str | None
    by_primary_key: bool
    fallback: str
    numeric_as_string: bool


def judge_tables(
    tables: Sequence[CheckedTable], rules: TableRules, *, upgrade_to: str | None
) -> list[Finding]:
    """Every finding about tables; `upgrade_to`: a plugin that can write numbers as strings, if ours can't."""
    added, filtered = parse_patterns(rules.add_tables), parse_patterns(rules.filter_tables)
    leaves = [
        table
        for table in tables
        if not table.partitioned
        and (rules.add_tables is None or _any_matches(added, table))
        and not _any_matches(filtered, table)
    ]
    findings = [
        *_patterns("WAL2JSON_ADD_TABLES", added, tables),
        *_patterns("WAL2JSON_FILTER_TABLES", filtered, tables),
        _identities(leaves),
    ]
    if rules.by_primary_key:
        findings += _keys(leaves, rules.fallback)
    if not rules.numeric_as_string:
        findings += _floats(leaves, upgrade_to)
    return findings + _partitions(leaves)


def _any_matches(patterns: Sequence[TablePattern], table: CheckedTable) -> bool:
    return any(pattern.matches(table.schema, table.table) for pattern in patterns)


def _patterns(
    variable: str, patterns: Sequence[TablePattern], tables: Sequence[CheckedTable]
) -> list[Finding]:
    """Patterns that mean nothing: a typo, or the parent of a partitioned table."""
    findings = []
    for pattern in patterns:
        meant = [table for table in tables if pattern.matches(table.schema, table.table)]
        if not meant:
            findings.append(
                Finding.warn(
                    "tables",
                    f"{variable}: {pattern.text!r} matches no table",
                    "spell it as in the catalog, case included; escape spaces, commas and dots with \\",
                )
            )
        elif all(table.partitioned for table in meant):
            findings.append(
                Finding.warn(
                    "tables",
                    f"{variable}: {pattern.text!r} is a partitioned table; changes name only its leaves",
                    "name the leaves, or their schema as schema.*",
                )
            )
    return findings


def _identities(leaves: Sequence[CheckedTable]) -> Finding:
    without = [table for table in leaves if not table.has_identity]
    if not without:
        return Finding.ok("replica identity", f"every table has one ({len(leaves)})")
    return Finding.fail(
        "replica identity",
        f"updates and deletes are left out, without a word, for {_names(without)}",
        "add a primary key that is not deferrable, or ALTER TABLE ... REPLICA IDENTITY FULL",
    )


def _keys(leaves: Sequence[CheckedTable], fallback: str) -> list[Finding]:
    without = [table for table in leaves if not table.has_key]
    if not without:
        return [Finding.ok("keys", f"every table has one ({len(leaves)})")]
    found = f"no key, so PARTITION_KEY_FALLBACK={fallback} applies, in {_names(without)}"
    if fallback != "lsn":
        return [Finding.ok("keys", found)]
    return [
        Finding.warn(
            "keys",
            f"{found}: changes of one row may arrive out of order",
            "add a primary key, or set PARTITION_KEY_FALLBACK=table",
        )
    ]


def _floats(leaves: Sequence[CheckedTable], upgrade_to: str | None) -> list[Finding]:
    having = [table for table in leaves if table.has_floats]
    if not having:
        return []
    upgrade = "" if upgrade_to is None else f"install {upgrade_to} or later, then "
    return [
        Finding.warn(
            "numbers",
            f"NaN and Infinity arrive as null; tables with numeric or floating-point columns: {len(having)}",
            f"none, if they hold no such values; else {upgrade}set WAL2JSON_NUMERIC_AS_STRING=true,"
            " and every number arrives as a string",
        )
    ]


def _partitions(leaves: Sequence[CheckedTable]) -> list[Finding]:
    partitions = [table for table in leaves if table.partition]
    if not partitions:
        return []
    return [
        Finding.ok(
            "partitions",
            f"{len(partitions)} found: their records carry the leaf's name, not the parent's",
            "a row that moves between partitions is a delete and an insert, under two keys",
        )
    ]


def _names(tables: Sequence[CheckedTable]) -> str:
    shown = ", ".join(table.name for table in tables[:NAMES_SHOWN])
    more = len(tables) - NAMES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown

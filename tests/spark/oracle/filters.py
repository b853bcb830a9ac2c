"""Filters with one meaning in two languages: a tree, written down for Spark and for Postgres.

Comparisons, IN, BETWEEN and IS, over integers, text and booleans, joined by AND, OR and NOT, with all of
three-valued logic. Text compares by bytes in both: the databases of the tests have the locale C.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from hypothesis import strategies as st

from tests.spark.oracle.kinds import KINDS, TEXTS, text_literal

Language = Literal["postgres", "spark"]
Value = int | str | bool | None

_COMPARISONS: Final = ("=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM")
_NUMBERS: Final = st.integers(-2, 6) | st.sampled_from([2**31 - 1, 2**31, 2**53, -(2**40)])


@dataclass(frozen=True, slots=True)
class Term:
    """A text with holes: columns and values, each written as the language wants it."""

    pattern: str
    columns: tuple[str, ...]
    values: tuple[Value, ...] = ()

    def to_sql(self, language: Language) -> str:
        """The condition, in brackets."""
        columns = [quoted(name, language) for name in self.columns]
        return f"({self.pattern.format(*columns, *[_literal(value, language) for value in self.values])})"


@dataclass(frozen=True, slots=True)
class Joined:
    """AND, OR (two parts) or NOT (one)."""

    word: Literal["AND", "OR", "NOT"]
    parts: tuple[Filter, ...]

    def to_sql(self, language: Language) -> str:
        """The condition, in brackets."""
        parts = [part.to_sql(language) for part in self.parts]
        return f"(NOT {parts[0]})" if self.word == "NOT" else f"({f' {self.word} '.join(parts)})"


Filter = Term | Joined


def quoted(name: str, language: Language) -> str:
    """A column's name."""
    return f"`{name}`" if language == "spark" else f'"{name}"'


def filters(columns: Sequence[tuple[str, str]]) -> st.SearchStrategy[Filter]:
    """Conditions over (name, kind) pairs, of which one at least can be compared."""
    usable = [(name, kind) for name, kind in columns if KINDS[kind].filter_type is not None]
    terms = st.sampled_from(usable).flatmap(lambda column: _terms(column, usable))
    return st.recursive(terms, _joined, max_leaves=4)


def _joined(parts: st.SearchStrategy[Filter]) -> st.SearchStrategy[Filter]:
    return st.builds(Joined, st.sampled_from(["AND", "OR"]), st.tuples(parts, parts)) | st.builds(
        Joined, st.just("NOT"), st.tuples(parts)
    )


def _terms(column: tuple[str, str], all_columns: Sequence[tuple[str, str]]) -> st.SearchStrategy[Term]:
    name, kind = column
    one = st.just((name,))
    missing = st.builds(Term, st.sampled_from(["{} IS NULL", "{} IS NOT NULL"]), one)
    if KINDS[kind].filter_type == "bool":
        plain = st.sampled_from(["{}", "NOT {}", "{} IS TRUE", "{} IS NOT TRUE", "{} IS NOT FALSE"])
        compared = st.builds(Term, st.sampled_from(["{} = {}", "{} <> {}"]), one, st.tuples(st.booleans()))
        return st.builds(Term, plain, one) | compared | missing
    values: st.SearchStrategy[Value] = (
        _NUMBERS if KINDS[kind].filter_type == "int" else st.sampled_from(TEXTS)
    )
    others = [other for other, its in all_columns if KINDS[its].filter_type == KINDS[kind].filter_type]
    comparison = st.sampled_from(_COMPARISONS)
    return st.one_of(
        st.builds(Term, comparison.map(lambda sign: f"{{}} {sign} {{}}"), one, st.tuples(values)),
        st.builds(
            Term,
            comparison.map(lambda sign: f"{{}} {sign} {{}}"),
            st.tuples(st.just(name), st.sampled_from(others)),
        ),
        st.builds(Term, st.just("{} BETWEEN {} AND {}"), one, st.tuples(values, values)),
        st.builds(
            Term,
            st.sampled_from(["{} IN ({}, {})", "{} NOT IN ({}, {})"]),
            one,
            st.tuples(values, values | st.none()),
        ),
        missing,
    )


def _literal(value: Value, language: Language) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int):
        return str(value)
    if language == "postgres":
        return text_literal(value)
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"

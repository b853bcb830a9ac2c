"""Generates rounds: worlds, and the lives of the service through which they are played.

Hypothesis can't hold a service for an example each, nor start one for each: so it is asked for worlds, and
many of them share one service. It draws in a process of its own: its choices also depend on the constants in
the modules that happen to be loaded, and a seed has to mean the same to pytest and to the soak.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.spark.oracle.filters import filters
from tests.spark.oracle.kinds import KEY_VALUES, KINDS
from tests.spark.oracle.life import Round, lives
from tests.spark.oracle.operations import Statements, inserts, operations
from tests.spark.oracle.tables import Column, Table
from tests.spark.oracle.tricks import tricks
from tests.spark.oracle.world import ShapeOf, Transaction, World

_T = TypeVar("_T")

_NAMES = ("v", "Mixed", "order", "größe", "x1", "select")
_VALUES = [*KINDS, "long", "int", "text"]
_PLAIN = [name for name, kind in KINDS.items() if not kind.toastable]


@st.composite
def tables(draw: st.DrawFn, name: str) -> Table:
    """A table with a key of one or two columns and up to five others."""
    key = [Column("id", draw(st.sampled_from(sorted(KEY_VALUES))), True)]
    partitioned = draw(st.integers(0, 2)) == 0
    if partitioned:
        key.append(Column("part", "int", True))
    elif draw(st.integers(0, 3)) == 0:
        key.append(Column("id2", "int", True))
    kinds = st.sampled_from(_VALUES if draw(st.integers(0, 3)) else _PLAIN)
    names = draw(st.permutations(_NAMES))[: draw(st.integers(2, 5))]
    others = [Column(each, draw(kinds), draw(st.integers(0, 4)) == 0) for each in names]
    full = draw(st.booleans())
    return Table(
        name,
        (*key, *others),
        len(key),
        full_identity=full,
        by_index=not full and not partitioned and draw(st.integers(0, 3)) == 0,
        leaves=(0, 1) if partitioned else (),
        nested_leaf=partitioned and draw(st.booleans()),
    )


@st.composite
def shapes(draw: st.DrawFn, all_tables: tuple[Table, ...], index: int) -> ShapeOf:
    """A shape over a table, as far as its replica identity allows."""
    table = all_tables[index]
    where = None
    comparable = [(each.name, each.kind) for each in table.columns if KINDS[each.kind].filter_type]
    if (table.full_identity or not table.toastable) and draw(st.integers(0, 3)):
        where = draw(filters(comparable))
    columns = None
    if draw(st.booleans()):
        others = [column.name for column in table.columns[table.key_length :]]
        columns = (*table.key, *draw(st.lists(st.sampled_from(others), unique=True)))
    return ShapeOf(index, where, columns, draw(st.sampled_from([10, 50, 300, 1500])))


@st.composite
def transactions(draw: st.DrawFn, all_tables: tuple[Table, ...]) -> Transaction:
    """A few ideas on any of the tables; some in a savepoint, which may be rolled back."""
    statements: Statements = ()
    for index in range(draw(st.integers(1, 4))):
        idea = draw(st.sampled_from(all_tables).flatmap(operations))
        if draw(st.integers(0, 40)) == 20:
            idea = (f"TRUNCATE {', '.join(table.name for table in all_tables)}", *idea)
        if draw(st.integers(0, 20)) == 10:
            idea = draw(st.sampled_from(all_tables).flatmap(tricks))
        point = f"s{index}"
        match draw(st.sampled_from(["plain", "plain", "plain", "kept", "undone"])):
            case "kept":
                idea = (f"SAVEPOINT {point}", *idea, f"RELEASE {point}")
            case "undone":
                idea = (f"SAVEPOINT {point}", *idea, f"ROLLBACK TO {point}")
        statements += idea
    return Transaction(statements, draw(st.integers(0, 9)) != 5)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Two to four tables, a shape or two over each, two or three writers."""
    made = tuple(draw(tables(f"t{index}")) for index in range(draw(st.integers(2, 4))))
    over = [*range(len(made)), *draw(st.lists(st.integers(0, len(made) - 1), min_size=1, max_size=2))]
    kept = tuple(draw(shapes(made, index)) for index in over)
    first = tuple(Transaction(draw(inserts(table))) for table in made)
    writer = st.lists(transactions(made), min_size=8, max_size=14).map(lambda each: (*first, *each))
    return World(
        made,
        kept,
        tuple(draw(st.lists(writer, min_size=2, max_size=3))),
        tuple(draw(st.lists(st.integers(0, 2), min_size=5, max_size=20))),
        (*(draw(edits(made, shape)) for shape in kept), draw(shapes(made, draw(st.sampled_from(over))))),
    )


@st.composite
def edits(draw: st.DrawFn, all_tables: tuple[Table, ...], shape: ShapeOf) -> ShapeOf | None:
    """What becomes of a shape when somebody edits the file."""
    match draw(st.sampled_from(["stays", "goes", "stays", "is edited", "hurries"])):
        case "goes":
            return None
        case "is edited":
            return draw(shapes(all_tables, shape.table))
        case "hurries":
            return replace(shape, flush_interval_ms=20)
        case _:
            return shape


def generate(seed_: int, size: int) -> Round:
    """The round of a seed, with so many worlds."""
    command = [sys.executable, "-m", __name__, str(seed_), str(size)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=120)
    made = pickle.loads(done.stdout)
    assert isinstance(made, Round)
    return made


def _draw(strategy: st.SearchStrategy[_T], seed_: int, count: int) -> list[_T]:
    drawn: list[_T] = []

    @seed(seed_)
    @settings(
        max_examples=count + 1,
        database=None,
        phases=[Phase.generate],
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def take(example: Any) -> None:
        drawn.append(example)

    take()
    # The first is always the simplest of all.
    return drawn[1 : count + 1]


def _main() -> None:
    seed_, size = map(int, sys.argv[1:])
    # The first that Hypothesis draws are alike, whatever the seed.
    *_, its_lives = _draw(lives(), seed_, 20)
    made = Round(seed_, tuple(_draw(worlds(), seed_, size)), its_lives)
    sys.stdout.buffer.write(pickle.dumps(made))


if __name__ == "__main__":
    _main()

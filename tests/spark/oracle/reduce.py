"""Makes a world that fails smaller: what is left of it is easier to understand.

A try costs a start of the service, so many smaller worlds are tried side by side, in one round.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tests.spark.oracle.world import World

_POINTS = re.compile(r"SAVEPOINT|RELEASE|ROLLBACK TO")


def only(world: World, shape: int) -> World:
    """One shape and its table, and of the statements those that have to do with it."""
    before = world.shapes[shape] if shape < len(world.shapes) else None
    after = world.reloaded[shape] if shape < len(world.reloaded) else before
    known = before or after
    assert known is not None
    table = world.tables[known.table]
    named = re.compile(rf"\b{table.name}(_\d+)*\b")

    def kept(statement: str) -> str | None:
        if statement.startswith("TRUNCATE") and named.search(statement):
            return f"TRUNCATE {table.name}"
        return statement if named.search(statement) or _POINTS.match(statement) else None

    statements = _map_statements(world, lambda _, statement: kept(statement))
    return replace(
        statements,
        tables=(table,),
        shapes=(replace(known, table=0),),
        reloaded=(replace(after or known, table=0),),
    )


def size_of(world: World) -> int:
    """How many statements its writers have."""
    return sum(len(each.statements) for writer in world.writers for each in writer)


def without(world: World, start: int, length: int) -> World:
    """The same without some statements, counted over all writers."""
    gone = range(start, start + length)
    return _map_statements(world, lambda index, statement: None if index in gone else statement)


def shrinking(
    world: World, first_failing: Callable[[Sequence[World]], int | None], batch: int
) -> Iterator[World]:
    """Ever smaller worlds that still fail. `first_failing` plays a batch of them, and says which one did."""
    length = size_of(world) // 2
    while length:
        candidates = [without(world, start, length) for start in range(0, size_of(world), length)]
        for start in range(0, len(candidates), batch):
            tried = candidates[start : start + batch]
            failing = first_failing(tried)
            if failing is not None:
                world = tried[failing]
                yield world
                length = min(length, size_of(world) // 2)
                break
        else:
            length //= 2


def _map_statements(world: World, change: Callable[[int, str], str | None]) -> World:
    writers, index = [], 0
    for writer in world.writers:
        transactions = []
        for transaction in writer:
            changed = [
                change(index + place, statement) for place, statement in enumerate(transaction.statements)
            ]
            index += len(transaction.statements)
            kept = _without_empty_points([statement for statement in changed if statement is not None])
            if kept:
                transactions.append(replace(transaction, statements=tuple(kept)))
        if transactions:
            writers.append(tuple(transactions))
    return replace(world, writers=tuple(writers))


def _without_empty_points(statements: Sequence[str]) -> list[str]:
    kept: list[str] = []
    for statement in statements:
        if kept and kept[-1].startswith("SAVEPOINT") and _POINTS.match(statement):
            kept.pop()
        else:
            kept.append(statement)
    return kept

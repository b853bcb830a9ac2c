"""What people read when a round has failed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.spark.oracle.compare import Difference
from tests.spark.oracle.life import Round
from tests.spark.oracle.reduce import only
from tests.spark.oracle.runner import parse_shape_name
from tests.spark.oracle.world import ShapeOf, World


def command(round_: Round) -> str:
    """What plays the round again, and makes it smaller if it fails."""
    return (
        f".venv/bin/python -m tests.spark.oracle --seed {round_.seed} --size {len(round_.worlds)} --rounds 1"
    )


def report(round_: Round, differences: Sequence[Difference], history: Sequence[str]) -> str:
    """The differences, what happened to the service, and each failing shape with its part of the script."""
    lines = [f"seed {round_.seed}, again by: {command(round_)}", *history]
    for difference in differences:
        index, shape = parse_shape_name(difference.shape)
        lines += ["", str(difference), *script(only(round_.worlds[index], shape))]
    return "\n".join(lines)


def script(world: World) -> Iterator[str]:
    """A world as SQL and TOML."""
    for table in world.tables:
        yield from (f"  {statement};" for statement in table.create())
    for shape in world.shapes:
        yield from _described("the shape", world, shape)
    for reloaded in world.reloaded:
        if reloaded is not None and reloaded not in world.shapes:
            yield from _described("reloaded", world, reloaded)
    for number, writer in enumerate(world.writers):
        for transaction in writer:
            yield f"  -- writer {number}"
            yield from (f"  {statement};" for statement in transaction.statements)
            yield "  COMMIT;" if transaction.commit else "  ROLLBACK;"
    yield f"  turns of the writers: {world.turns}"


def _described(what: str, world: World, shape: ShapeOf) -> Iterator[str]:
    yield f"  {what}: {shape.query('w', world.tables[shape.table])}"
    if shape.where is not None:
        yield f"  in Spark: {shape.where.to_sql('spark')}"

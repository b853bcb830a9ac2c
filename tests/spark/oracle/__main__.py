"""The soak: rounds with new seeds until the time is up; a round that fails is made smaller meanwhile."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from penstock.local.postgres import PrivatePostgres
from tests.servers.slots import SlotWatch
from tests.spark.oracle.generate import generate
from tests.spark.oracle.life import Round
from tests.spark.oracle.reduce import only, shrinking, size_of
from tests.spark.oracle.report import report, script
from tests.spark.oracle.runner import RoundRunner, parse_shape_name
from tests.spark.oracle.world import World

_TRIED_AT_ONCE = 6


class Soak:
    """Plays rounds on one Postgres, each in a database of its own."""

    def __init__(self, postgres: PrivatePostgres, deadline: float) -> None:
        self._postgres = postgres
        self._deadline = deadline

    def is_equal(self, round_: Round) -> bool:
        """Play a round and say how it went, in a line if all is well."""
        began = time.monotonic()
        with self._runner(round_) as runner:
            try:
                differences = runner.run()
            except BaseException:
                print(report(round_, [], runner.history), flush=True)
                raise
        if differences:
            print(report(round_, differences, runner.history), flush=True)
            index, shape = parse_shape_name(differences[0].shape)
            self._shrink(round_, only(round_.worlds[index], shape))
            return False
        shapes = sum(len(world.shapes) for world in round_.worlds)
        print(
            f"seed {round_.seed}: {shapes} shapes equal, compared {runner.compared} times over"
            f" {runner.committed} transactions and {len(round_.lives) + 1} lives,"
            f" {time.monotonic() - began:.0f} s",
            flush=True,
        )
        return True

    def _shrink(self, round_: Round, world: World) -> None:
        smaller = shrinking(world, lambda worlds: self._first_failing(round_, worlds), _TRIED_AT_ONCE)
        while time.monotonic() < self._deadline:
            found = next(smaller, None)
            if found is None:
                break
            world = found
            print(f"still fails with {size_of(world)} statements", flush=True)
        print("the smallest that was found:", *script(world), sep="\n", flush=True)

    def _first_failing(self, round_: Round, worlds: Sequence[World]) -> int | None:
        with self._runner(replace(round_, worlds=tuple(worlds))) as runner:
            differences = runner.run()
        return min((parse_shape_name(each.shape)[0] for each in differences), default=None)

    @contextmanager
    def _runner(self, round_: Round) -> Iterator[RoundRunner]:
        database = self._postgres.create_database()
        with tempfile.TemporaryDirectory(prefix="penstock-oracle-") as directory:
            yield RoundRunner(self._postgres, database, Path(directory), round_)
        # Its slot would keep the server's WAL for the rest of the soak.
        SlotWatch(self._postgres).drop_all_of(database)
        self._postgres.psql(f"DROP DATABASE {database} WITH (FORCE)")


def main() -> int:
    """Run the soak; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark.oracle", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="begin no round after so long")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first round")
    parser.add_argument("--rounds", type=int, default=sys.maxsize, help="at most so many")
    parser.add_argument("--size", type=int, default=3, help="worlds in a round")
    options = parser.parse_args()
    deadline = time.monotonic() + options.minutes * 60
    with PrivatePostgres() as postgres:
        soak = Soak(postgres, deadline)
        for played in range(options.rounds):
            if played and time.monotonic() > deadline:
                break
            if not soak.is_equal(generate(options.seed + played, options.size)):
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

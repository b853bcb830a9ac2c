"""`penstock bench shapes`: measure, print the table, keep it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection
from contextlib import closing
from pathlib import Path
from typing import Final

from penstock.bench import shapes_measures as measures
from penstock.bench.collector_speed import collector_speed
from penstock.bench.measuring import Measure, report, run_parts
from penstock.bench.parts import Sizes
from penstock.bench.shapes_age import aging
from penstock.bench.shapes_backlog import create_orders, insert_orders
from penstock.bench.shapes_many import many
from penstock.bench.shapes_verify import verify
from penstock.bench.shapes_wide import wide
from penstock.bench.spark_jobs import SparkBench
from penstock.bench.table import Row, say
from penstock.local.postgres import PrivatePostgres

_ON_SPARK: Final = ("backlog", "snapshot", "age", "verify", "wide")
_OF_ORDERS: Final = ("snapshot", "verify", "service")


def bench_shapes(sizes: Sizes, parts: Collection[str], markdown: Path | None) -> int:
    """Measure these parts; returns 0 if all their targets were reached, 1 otherwise.

    A part that fails is a target that was missed, and the others are measured all the same.
    """
    return report(lambda found: _measure(sizes, parts, found), markdown)


def _measure(sizes: Sizes, parts: Collection[str], found: list[Row]) -> None:
    run_parts({"collector": collector_speed}, parts, found)
    if set(parts) <= {"collector"}:
        return
    with PrivatePostgres() as postgres, tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        directory = Path(name)
        database = create_orders(postgres)
        if set(parts) & set(_OF_ORDERS):
            say(f"a table of {sizes.rows:,} rows")
            insert_orders(postgres, database, sizes.rows)
        # Spark's tasks find the server by the environment in which Spark was started.
        os.environ.update(postgres.env(database))
        if set(parts) & set(_ON_SPARK):
            with closing(SparkBench(directory)) as spark:
                run_parts(_on_spark(sizes, postgres, spark, database, directory), parts, found)
        run_parts(_of_the_service(sizes, postgres, database, directory), parts, found)


def _on_spark(
    sizes: Sizes, postgres: PrivatePostgres, spark: SparkBench, database: str, directory: Path
) -> dict[str, Measure]:
    rows, rounds = sizes.rows, sizes.rounds
    return {
        "backlog": lambda: measures.backlog(postgres, spark, directory, changes=sizes.changes, rounds=rounds),
        "snapshot": lambda: measures.snapshot(postgres, spark, database, rows=rows, rounds=rounds),
        "age": lambda: aging(spark, measures.LAYOUT, rows=rows, rounds=2 * rounds + 1),
        "verify": lambda: verify(postgres, spark, database, directory / "verify", rows=rows, rounds=rounds),
        "wide": lambda: wide(spark, rounds=rounds),
    }


def _of_the_service(
    sizes: Sizes, postgres: PrivatePostgres, database: str, directory: Path
) -> dict[str, Measure]:
    def service() -> list[Row]:
        return [
            row
            for few, limit_s in ((1, 3.0), (10, 8.0))
            for row in measures.latency(
                postgres,
                database,
                directory / f"latency-{few}",
                rows=sizes.rows,
                shapes=few,
                commits=sizes.commits,
                limit_s=limit_s,
            )
        ]

    found: dict[str, Measure] = {"service": service}
    if sizes.shapes:
        found["many"] = lambda: many(postgres, directory / "many", shapes=sizes.shapes, seconds=sizes.seconds)
    return found

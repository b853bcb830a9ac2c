"""`penstock bench shapes`: measure, print the table, keep it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from penstock.bench import shapes_measures as measures
from penstock.bench.collector_speed import collector_speed
from penstock.bench.shapes_age import aging
from penstock.bench.shapes_backlog import create_orders
from penstock.bench.shapes_many import many
from penstock.bench.spark_jobs import SparkBench
from penstock.bench.table import Row, print_table, say, write_markdown
from penstock.local.postgres import PrivatePostgres


def bench_shapes(
    *, changes: int, rows: int, rounds: int, commits: int, shapes: int, markdown: Path | None
) -> int:
    """Run every measurement; returns 0 if all targets were reached, 1 otherwise."""
    found: list[Row] = collector_speed()
    with PrivatePostgres() as postgres, tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        directory = Path(name)
        say(f"a table of {rows} rows")
        database = create_orders(postgres, rows)
        # Spark's tasks find the server by the environment in which Spark was started.
        os.environ.update(postgres.env(database))
        spark = SparkBench(directory)
        try:
            found += measures.backlog(postgres, spark, directory, changes=changes, rounds=rounds)
            found += measures.snapshot(postgres, spark, database, rows=rows, rounds=rounds)
            found += aging(spark, measures.LAYOUT, rows=rows, rounds=2 * rounds + 1)
            print_table(found)
        finally:
            spark.close()
        for few, limit_s in ((1, 3.0), (10, 8.0)):
            found += measures.latency(
                postgres,
                database,
                directory / f"latency-{few}",
                rows=rows,
                shapes=few,
                commits=commits,
                limit_s=limit_s,
            )
        if shapes:
            found += many(postgres, directory / "many", shapes=shapes)
    print_table(found)
    if markdown is not None:
        write_markdown(markdown, found)
    return 0 if all(row.reached is not False for row in found) else 1

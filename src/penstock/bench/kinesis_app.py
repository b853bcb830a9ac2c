"""`penstock bench kinesis`: readers of a marked stream, beside what they are held against."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from typing import Final

from penstock.bench.kinesis_backlog import FilledStream, backlog, fill_stream
from penstock.bench.kinesis_batches import batches
from penstock.bench.kinesis_latency import latency
from penstock.bench.kinesis_source import source
from penstock.bench.marked_cost import marked_cost
from penstock.bench.measuring import Measure, report, run_parts
from penstock.bench.parts import KinesisSizes
from penstock.bench.spark_jobs import SparkBench
from penstock.bench.table import Row
from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres

_ON_SPARK: Final = ("source", "backlog", "batches")
_PAIRS_EACH: Final = 4
"""A pair is a matter of seconds, and a ratio of few of them says little."""


def bench_kinesis(sizes: KinesisSizes, parts: Collection[str], markdown: Path | None) -> int:
    """Measure these parts; returns 0 if all their targets were reached, 1 otherwise."""
    return report(lambda found: _measure(sizes, parts, found), markdown)


def _measure(sizes: KinesisSizes, parts: Collection[str], found: list[Row]) -> None:
    with (
        PrivatePostgres() as postgres,
        LocalKinesis() as kinesis,
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as name,
    ):
        directory = Path(name)
        cost = partial(marked_cost, postgres, changes=sizes.changes // 2, pairs=_PAIRS_EACH * sizes.rounds)
        run_parts({"marked": cost}, parts, found)
        # Spark's tasks find credentials by the environment in which Spark was started.
        os.environ.update(kinesis.env())
        if set(parts) & set(_ON_SPARK):
            with closing(SparkBench(directory)) as spark:
                run_parts(_on_spark(sizes, postgres, kinesis, spark, directory), parts, found)
        run_parts(
            {"latency": lambda: latency(postgres, kinesis, directory / "latency", commits=sizes.commits)},
            parts,
            found,
        )


def _on_spark(
    sizes: KinesisSizes, postgres: PrivatePostgres, kinesis: LocalKinesis, spark: SparkBench, directory: Path
) -> dict[str, Measure]:
    rounds = sizes.rounds

    @cache
    def filled() -> FilledStream:
        return fill_stream(postgres, kinesis, directory, sizes.changes)

    return {
        "source": lambda: source(filled(), kinesis, spark, directory, rounds=rounds),
        "backlog": lambda: backlog(filled(), spark, rounds=rounds),
        "batches": lambda: batches(postgres, kinesis, spark, directory, commits=sizes.commits),
    }

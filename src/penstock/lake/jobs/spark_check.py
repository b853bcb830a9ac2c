"""Spark's side of `penstock check --config`: does it start, take each `where`, and see the log?"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.errors import PenstockError
from penstock.finding import Finding
from penstock.lake.jobs.where_check import where_refusals
from penstock.lake.spark.session_conf import check_conf, is_local
from penstock.lake.spark.spark_session import open_session, plain_errors, stop_session
from penstock.model.relation import Relation
from penstock.model.shape import ShapesFile
from penstock.postgres.catalog.table_facts import TableFacts


def check_spark(
    file: ShapesFile,
    facts: Mapping[Relation, TableFacts],
    master: str,
    conf: Mapping[str, str],
    log_directory: Path | None,
) -> list[Finding]:
    """Start Spark and ask it; `log_directory` None: there is no log. Blocks for seconds."""
    try:
        check_conf(file.storage, conf)
        spark = open_session(master, "penstock check", conf)
    except PenstockError as error:
        return [Finding.from_error("spark", error)]
    try:
        findings = [Finding.ok("spark", f"Spark {spark.version} starts with master {master}")]
        lines = where_refusals(spark, file, facts)
        findings += [Finding.from_error("where", PenstockError(line)) for line in lines]
        if log_directory is not None and not is_local(master):
            findings.append(_shared(spark, log_directory))
    finally:
        stop_session(spark)
    return findings


def _shared(spark: SparkSession, log_directory: Path) -> Finding:
    """Whether executors see a file that the driver puts into the log's directory."""
    try:
        log_directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=log_directory, prefix=".penstock-check-") as probe:
            path = probe.name

            def look(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
                for batch in numbers:
                    seen = [os.path.exists(path)] * batch.num_rows
                    yield pa.RecordBatch.from_arrays([pa.array(seen)], names=["seen"])

            tasks = max(2, spark.sparkContext.defaultParallelism)
            with plain_errors(str(log_directory)):
                answers = spark.range(tasks, numPartitions=tasks).mapInArrow(look, "seen boolean").collect()
    except (OSError, PenstockError) as error:
        return Finding.fail("log", f"executors could not be asked for {log_directory}: {error}")
    if all(answer.seen for answer in answers):
        return Finding.ok("log", f"executors see {log_directory}")
    return Finding.fail(
        "log",
        f"executors don't see {log_directory}",
        "set LOG_DIR to a mount that driver and executors share",
    )

"""The parts that need Spark. Importing this package loads none of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("penstock")` known to this session (docs/log.md)."""
    from penstock.sources.log_source import ChangesSource

    spark.dataSource.register(ChangesSource)

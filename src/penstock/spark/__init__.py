"""The parts that need Spark. Importing this package loads none of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `format("penstock")` (docs/log.md) and `format("penstock_kinesis")` (docs/spark.md) known."""
    from penstock.sources.kinesis_source import KinesisSource
    from penstock.sources.log_source import ChangesSource

    spark.dataSource.register(ChangesSource)
    spark.dataSource.register(KinesisSource)

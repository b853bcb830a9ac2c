"""The parts that need Spark. Importing this package loads none of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `format("penstock")` (docs/log.md, docs/spark.md) and `format("penstock_kinesis")` known."""
    from penstock.sources.kinesis_source import KinesisSource
    from penstock.sources.penstock_source import PenstockSource

    spark.dataSource.register(PenstockSource)
    spark.dataSource.register(KinesisSource)

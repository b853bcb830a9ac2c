"""Spark's settings for one operation of a session, and as they were before behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession


@contextmanager
def with_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Settings for the operation inside."""
    before = {name: str(spark.conf.get(name)) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        # Unset, they would fall back to Spark's own defaults, and not to our session's.
        for name, value in before.items():
            spark.conf.set(name, value)

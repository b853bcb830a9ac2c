"""A table of `penstock bench shapes` that is flushed to, one transaction at a time."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from penstock.changelog.log import ChangeLog, LogLimits
from penstock.lake.delta.app_id import AppId
from penstock.lake.delta.shape_table import ShapeTable
from penstock.lake.jobs.changes import ShapeLayout
from penstock.lake.jobs.flush import flush
from penstock.lake.spark.spark_session import shape_session
from penstock.model.log_offset import LAST_BEFORE_REAL
from penstock.model.relation import Relation

APP: Final = AppId("1", "bench", 1)


class BenchTable:
    """A table in `directory`, in a session of its own."""

    def __init__(self, spark: SparkSession, directory: Path, relation: Relation, layout: ShapeLayout) -> None:
        self._spark = shape_session(spark)
        self._directory = directory
        self._relation = relation
        self._layout = layout
        self._flushes = 0
        self._at = 100
        self.open()

    def open(self) -> None:
        """Open the table as a service does that starts: it knows nothing of it yet."""
        self.table = ShapeTable(self._spark, str(self._directory / "table"), APP)

    def fill(self, rows: DataFrame) -> None:
        """Make the table of these rows, as a snapshot does."""
        self.table.overwrite_from(rows, self._at, self._layout.key)

    def flush(self, payloads: Iterable[bytes]) -> float:
        """Seconds that a flush of one transaction with these changes takes; they are in the log before."""
        self._flushes += 1
        self._at += 10
        directory = self._directory / f"log-{self._flushes}"
        directory.mkdir()
        log = ChangeLog(directory, LogLimits(min_free_bytes=0))
        for place, payload in enumerate(payloads):
            log.append(self._relation, self._at, 2 * place, payload)
            if log.write_due:
                log.write()
        log.commit(self._at)
        log.flush(0.0)
        log.close()
        ranges = log.read_plan([self._relation], LAST_BEFORE_REAL)
        started = time.perf_counter()
        flush(self._spark, self.table, self._layout, ranges, self._at)
        seconds = time.perf_counter() - started
        shutil.rmtree(directory)
        return seconds

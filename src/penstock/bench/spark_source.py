"""`format("penstock")` over a marked stream, as a user's Spark runs it; for `penstock bench kinesis`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.bench.process_tree import tree_cpu_seconds
from penstock.errors import PenstockError
from penstock.kinesis.read.marked_stream import StreamAddress
from penstock.model.relation import Relation
from penstock.spark import register

_PATIENCE_S: Final = 120.0
_POLL_S: Final = 0.05


def spark_cpu_seconds(spark: SparkSession) -> float:
    """Processor time so far of this process, of Java, and of the workers that it has started."""
    gateway: Any = spark.sparkContext._gateway
    return time.process_time() + tree_cpu_seconds(gateway.proc.pid)


class SourceFailed(PenstockError):
    """A query did not do what it was measured for."""


class Read(NamedTuple):
    """How long a read took."""

    seconds: float
    cpu_s: float
    """Of the driver, Java and all workers."""


class Batch(NamedTuple):
    """A batch of a running query, as Spark reports it."""

    number: int
    rows: int
    stages_ms: dict[str, int]
    """Where its time went; `triggerExecution` is all of it."""


class SparkSource:
    """Reads one stream."""

    def __init__(self, spark: SparkSession, address: StreamAddress) -> None:
        register(spark)
        self._spark = spark
        self._options = {
            "kinesis.streamName": address.stream,
            "kinesis.region": address.region,
            "kinesis.endpointUrl": address.endpoint_url or "",
            "kinesis.marksStreamName": address.marks_stream,
            "slot": address.slot,
        }

    def count(self) -> int:
        """How many changes there are."""
        return self._spark.read.format("penstock").options(**self._options).load().count()

    def read(self) -> Read:
        """Everything to no-op, planning included."""
        cpu_before_s, began_at = spark_cpu_seconds(self._spark), time.perf_counter()
        frame = self._spark.read.format("penstock").options(**self._options).load()
        frame.write.format("noop").mode("overwrite").save()
        return Read(time.perf_counter() - began_at, spark_cpu_seconds(self._spark) - cpu_before_s)

    @contextmanager
    def running(self, table: Relation, checkpoint: Path) -> Iterator[RunningQuery]:
        """A query to no-op that takes what comes of a table from now on, with Spark's own trigger."""
        options = {**self._options, "table": str(table), "raw": "true", "startingPosition": "latest"}
        frame = self._spark.readStream.format("penstock").options(**options).load()
        query = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
        try:
            yield RunningQuery(query)
        finally:
            query.stop()


class RunningQuery:
    """A streaming query whose batches are told."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._seen = -1

    def next_batch(self, rows: int) -> Batch:
        """Wait for a batch with so many rows, behind those that were seen before."""
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            if (error := self._query.exception()) is not None:
                raise SourceFailed(f"the query ended: {str(error).splitlines()[0]}")
            for batch in map(_batch, self._query.recentProgress):
                # A look that found nothing is reported now and then, too.
                if "addBatch" in batch.stages_ms and batch.number > self._seen:
                    self._seen = batch.number
                    if batch.rows == rows:
                        return batch
            time.sleep(_POLL_S)
        raise SourceFailed(f"no batch of {rows} rows came within {_PATIENCE_S:.0f} s")


def _batch(progress: Any) -> Batch:
    return Batch(progress["batchId"], progress["numInputRows"], dict(progress["durationMs"]))

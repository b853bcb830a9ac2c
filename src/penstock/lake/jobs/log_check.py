"""Whether Spark's executors see the directory in which the log is: they decode what is large themselves.

They are asked by a job, which waits for ever where a cluster has no executors to give. So it has a name by
which it can be cancelled.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from penstock.changelog.errors import cant_write
from penstock.durable import make_directory

_GROUP: Final = "penstock-log-check"


def runs_in_driver(master: str) -> bool:
    """Whether executors are on the driver's own machine, and see what it sees."""
    return master == "local" or master.startswith(("local[", "local-cluster["))


def blind_hosts(spark: SparkSession, directory: Path) -> list[str]:
    """The hosts whose executors don't see the directory; none: all that were asked do. Blocks.

    ChangeLogBroken if the driver itself can't write there. It may wait for executors for ever; `cancel_look`
    makes it fail then, as soon as it has begun.
    """
    marker = directory / f"marker-{secrets.token_hex(8)}"
    try:
        make_directory(directory)
        marker.touch(mode=0o644)
    except OSError as error:
        raise cant_write(marker, error) from error
    path = str(marker)

    def look(_: Iterable[int]) -> Iterator[tuple[str, bool]]:
        yield socket.gethostname(), Path(path).exists()

    try:
        context = spark.sparkContext
        context.setJobGroup(_GROUP, "look for the log's directory")
        places = context.defaultParallelism
        found = context.parallelize(range(places), places).mapPartitions(look).collect()
    finally:
        marker.unlink(missing_ok=True)
    return sorted({host for host, sees in found if not sees})


def cancel_look(spark: SparkSession) -> None:
    """End a `blind_hosts` that waits for executors. Blocks for a moment."""
    spark.sparkContext.cancelJobGroup(_GROUP)

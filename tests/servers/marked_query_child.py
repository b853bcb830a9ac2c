"""A streaming query over a marked stream in a process of its own, made to be killed.

Arguments: what is asked for as JSON (options, Spark's settings, `endless` or `available`), and a directory.
Each attempt at a batch writes its rows to a file of its own there, `<batch id>.<attempt>`, one at a time, and
names it `….done` when it has them all. The session is a plain one: the source needs no jar.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from penstock.spark import register


def main() -> None:
    """Run the query until it ends."""
    asked, directory = json.loads(sys.argv[1]), Path(sys.argv[2])
    os.environ["PYSPARK_PYTHON"] = sys.executable

    def write(frame: DataFrame, number: int) -> None:
        path = directory / f"{number}.{secrets.token_hex(4)}"
        with path.open("w") as file:
            for row in frame.toLocalIterator():
                file.write(f"{row.position} {bytes(row.data).decode()}\n")
                file.flush()
                time.sleep(0.005)
        path.rename(f"{path}.done")

    builder = SparkSession.builder.config(map=asked["conf"])
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    register(spark)
    changes = spark.readStream.format("penstock").options(**asked["options"]).load()
    writer = changes.writeStream.foreachBatch(write)
    writer = writer.option("checkpointLocation", str(directory / "checkpoint"))
    if asked["mode"] == "available":
        writer = writer.trigger(availableNow=True)
    writer.start().awaitTermination()


if __name__ == "__main__":
    main()

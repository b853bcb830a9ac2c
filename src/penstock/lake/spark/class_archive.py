"""The class archive: Spark's classes as Java has read and checked them, so that the next Spark starts sooner.

A Spark that works for seconds spends most of them on its classes: it finds them in hundreds of jars, reads
and checks them. `python -m penstock.lake.spark.class_archive` (a step of `make setup`) has a Spark do in
short what our jobs do, and has Java write down the classes that this took.

An archive is of use to one Java with one class path. Java compares both, and goes without the archive where
they differ: then all is as it would be without one. It lies in the environment that Spark is installed in,
and goes when that goes.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock import exit_codes
from penstock.errors import PenstockError
from penstock.lake.errors import SparkFailed
from penstock.lake.spark.jars import cache_directory, jars_for_spark

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_SUFFIX: Final = ".jsa"
_WRITING_S: Final = 120.0
# An archive that doesn't fit is left aside, and nobody has to hear of it.
_QUIET: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off"
_QUICK_START: Final = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


def archive_file(environ: Mapping[str, str] = os.environ, prefix: str = sys.prefix) -> Path | None:
    """Where the archive for this Java and these jars is, or would be; None if there is no Java."""
    found = shutil.which(Path(environ["JAVA_HOME"], "bin", "java") if environ.get("JAVA_HOME") else "java")
    if found is None:
        return None
    parts = [Path(found).resolve(), *jars_for_spark(cache_directory(environ))]
    # In seconds, as Java compares them, and as layers of images keep them.
    marks = [f"{part} {part.stat().st_size} {int(part.stat().st_mtime)}" for part in parts]
    name = sha256("\n".join([version("pyspark"), *marks]).encode()).hexdigest()[:16]
    return Path(prefix, "share", "penstock", name + _SUFFIX)


def reading(archive: Path | None) -> str:
    """The options with which Java uses an archive; none if it isn't there."""
    if archive is None or not archive.is_file():
        return ""
    return f"{shlex.quote(f'-XX:SharedArchiveFile={archive}')} {_QUIET}"


def make(archive: Path) -> None:
    """Make it, in place of older ones. SparkFailed if Java doesn't. Blocks for half a minute."""
    from penstock.lake.spark.spark_session import end_java, open_session

    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".archive-", dir=archive.parent) as scratch:
        written = Path(scratch, archive.name)
        options = f"{shlex.quote(f'-XX:ArchiveClassesAtExit={written}')} -XX:TieredStopAtLevel=1 {_QUIET}"
        spark = open_session("local[2]", "penstock classes", {"spark.driver.extraJavaOptions": options})
        try:
            _work(spark, Path(scratch))
        finally:
            code = end_java(spark, _WRITING_S)
        if code != 0 or not written.is_file():
            raise SparkFailed(f"Java wrote no class archive: it ended with {code}")
        # Java would crash on half of one, and a name may outlive a power cut that the content doesn't.
        with written.open("rb") as content:
            os.fsync(content.fileno())
        for older in archive.parent.glob(f"*{_SUFFIX}"):
            older.unlink(missing_ok=True)
        written.rename(archive)


def _work(spark: SparkSession, directory: Path) -> None:
    """A snapshot, flushes and a comparison, in short."""
    table = str(directory / "table")
    _rows(spark, 0, 200).write.format("delta").save(table)
    for settings in ({}, _QUICK_START):
        session = spark.newSession()
        for name, value in settings.items():
            session.conf.set(name, value)
        _merge(session, table)
        _compare(session, table)


def _rows(spark: SparkSession, start: int, end: int) -> DataFrame:
    from pyspark.sql import functions as F

    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    numbers = spark.range(start, end, 1, 2).mapInArrow(same, "id bigint")
    return numbers.select(
        "id",
        F.col("id").cast("string").alias("text"),
        F.col("id").cast("decimal(10,2)").alias("amount"),
        F.timestamp_seconds("id").alias("at"),
    )


def _merge(spark: SparkSession, table: str) -> None:
    from delta.tables import DeltaTable
    from pyspark.sql import functions as F

    changes = _rows(spark, 190, 210).withColumn("gone", F.col("id") % 7 == 0).persist()
    values = {name: f"s.{name}" for name in ("id", "text", "amount", "at")}
    (
        DeltaTable.forPath(spark, table)
        .alias("t")
        .merge(changes.alias("s"), "t.id = s.id and t.id between 190 and 210")
        .whenMatchedDelete("s.gone")
        .whenMatchedUpdate(set=dict(values))
        .whenNotMatchedInsert("not s.gone", dict(values))
        .execute()
    )
    changes.unpersist()


def _compare(spark: SparkSession, table: str) -> None:
    from pyspark.sql import functions as F

    lake = spark.read.format("delta").option("versionAsOf", 0).load(table)
    sides = _rows(spark, 0, 200).unionByName(lake)
    hashed = F.xxhash64(*sides.columns)
    counted = sides.groupBy(F.pmod(hashed, F.lit(16)).alias("bucket"))
    counted.agg(F.count("*").alias("rows"), F.sum(hashed.bitwiseAND(0xFFFF)).alias("sum")).toArrow()


def main() -> int:
    """Make the archive if it isn't there; one line says what happened."""
    try:
        archive = archive_file()
        if archive is None:
            raise SparkFailed("there is no Java, on the PATH or in JAVA_HOME")
        if not archive.is_file():
            print("classes: archiving those of Spark, for quicker starts (half a minute, once)", flush=True)
            make(archive)
    except (PenstockError, OSError) as error:
        print(f"classes: Spark will start without an archive of its classes: {error}", file=sys.stderr)
        return exit_codes.FAILED
    return exit_codes.OK


if __name__ == "__main__":
    sys.exit(main())

"""Spark's settings: ours, and which of them `--conf` may change."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from penstock.lake.errors import ConfRefused, StorageRefused
from penstock.lake.spark.log_store import FOR_FILES, FOR_S3

LOCAL: Final = "local"
_LOCAL_PARTITIONS: Final = 4
_FILE_MANAGER: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
_FILE_LOG_STORE: Final = "spark.delta.logStore.file.impl"
_S3_LOG_STORE: Final = "spark.delta.logStore.s3a.impl"
# Lists, to which others may add: what Delta's classes or our log lines need would go if they were replaced.
_ADDED_TO: Final = {
    "spark.jars": ",",
    "spark.driver.extraClassPath": ":",
    "spark.sql.extensions": ",",
    "spark.driver.extraJavaOptions": " ",
}
# What a table holds, or whether it is safe, follows from these.
_FIXED: Final = {
    "spark.master": "use --master",
    "spark.sql.session.timeZone": "tables are written in UTC",
    "spark.sql.ansi.enabled": "without it values that don't fit become null",
    "spark.sql.parquet.outputTimestampType": "other readers lose timestamps of another type",
    "spark.sql.catalog.spark_catalog": "the tables are Delta's",
    "spark.delta.logStore.class": "commits to a disk need a log store that syncs them",
    _FILE_LOG_STORE: "commits to a disk need a log store that syncs them",
}


def session_conf(master: str, app_name: str, jars: list[Path]) -> dict[str, str]:
    """Our settings for a master."""
    conf = {
        "spark.master": master,
        "spark.app.name": app_name,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        _FILE_LOG_STORE: FOR_FILES,
        _S3_LOG_STORE: FOR_S3,
        # Spark's choice looks at links by starting a process for each.
        "spark.sql.streaming.checkpointFileManagerClass": _FILE_MANAGER,
        # Shapes flush side by side: FIFO would let one large flush hold up all small ones.
        "spark.scheduler.mode": "FAIR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # Spark's own choice, INT96, is read as nanoseconds elsewhere, which hold the years 1678 to 2262 only.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        # Commits of their own, in which nothing changes.
        "spark.databricks.delta.vacuum.logging.enabled": "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_log_settings()}",
        "spark.driver.memory": "1g",
    }
    if is_local(master):
        # On one machine a task or job costs more than the rows in it. Adaptive execution makes a job of each
        # stage: a MERGE of one row into a million has 6 without it and 12 with it.
        conf |= {
            # Java's own choice lets the heap grow by hundreds of megabytes before it looks for what is dead.
            "spark.driver.defaultJavaOptions": "-XX:+UseSerialGC",
            # One process needs no copies of them, and takes classes from an archive by its class path only.
            "spark.driver.extraClassPath": ":".join(map(str, jars)),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.adaptive.enabled": "false",
            "spark.default.parallelism": str(_LOCAL_PARTITIONS),
            "spark.sql.shuffle.partitions": str(_LOCAL_PARTITIONS),
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(_LOCAL_PARTITIONS),
            "spark.databricks.delta.snapshotPartitions": "2",
        }
    else:
        conf["spark.jars"] = ",".join(map(str, jars))
    return conf


def with_theirs(ours: Mapping[str, str], theirs: Mapping[str, str]) -> dict[str, str]:
    """Our settings with a user's over them, or behind them where they are lists."""
    conf = {**ours, **theirs}
    for name, between in _ADDED_TO.items():
        if name in ours and name in theirs:
            conf[name] = ours[name] + between + theirs[name]
    return conf


def for_short_work(master: str, theirs: Mapping[str, str]) -> Mapping[str, str]:
    """A user's settings for a Spark that lives for seconds: little is compiled, and not well.

    Java's better compiler takes one of two cores for as long as the whole work lasts, and pays only later; so
    do Spark's own generated classes, and a task for each of several parts of a few rows.
    """
    if not is_local(master):
        return theirs
    ours = {
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.shuffle.partitions": "1",
        "spark.databricks.delta.snapshotPartitions": "1",
    }
    return with_theirs(ours, theirs)


def is_local(master: str) -> bool:
    """Whether Spark runs in one process on this machine."""
    return master == LOCAL or master.startswith(f"{LOCAL}[")


def check_conf(url: str, theirs: Mapping[str, str]) -> None:
    """Refuse a user's settings with which tables at `url` would not be what they promise.

    ConfRefused for one that is fixed. StorageRefused for Delta's own log store for S3, which looks and then
    writes: it is safe within one JVM only, and a former leader's commit could overwrite the new one's.
    """
    for name in _FIXED.keys() & theirs.keys():
        raise ConfRefused(f"--conf {name}={theirs[name]}: {_FIXED[name]}. Fix: leave it out")
    if urlsplit(url).scheme == "s3a" and theirs.get(_S3_LOG_STORE, "").endswith("S3SingleDriverLogStore"):
        raise StorageRefused(
            f"storage {url}: two leaders could overwrite each other's commits. Leave {_S3_LOG_STORE} unset"
            " for ours, or set it to one for several writers, such as io.delta.storage.S3DynamoDBLogStore"
        )


def _log_settings() -> str:
    return Path(str(files("penstock.lake.spark") / "log4j2.properties")).as_uri()

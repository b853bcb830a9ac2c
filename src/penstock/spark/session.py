"""The Spark session: made once for the process, with one child session a shape.

Making it takes seconds and blocks: call it in a thread. A session's settings are shared by all threads that
use it, and a flush sets its transaction's name and version there: each shape works in a session of its own.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from subprocess import PIPE
from typing import IO, Final
from urllib.parse import urlsplit

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from penstock.errors import PenstockError
from penstock.spark.jars import cache_directory, jar_paths

LOCAL: Final = "local"
_LOCAL_PARTITIONS: Final = 4
_FILE_BYTES: Final = 32 << 20
_START: Final = threading.Lock()
# Java says this of a module that Spark asks for, in a tone that worries people.
_JAVA_CHATTER: Final = b"Using incubator modules"


class SparkFailed(PenstockError):
    """Spark could not be started."""


class StorageRefused(PenstockError):
    """Tables at this storage could lose commits."""


def open_session(
    master: str = "local[2]",
    app_name: str = "penstock",
    extra_conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """The process's session; made at the first call. Blocks for seconds, so call it in a thread.

    `extra_conf` goes over our own settings. JarsMissing if Delta's jars were not fetched, SparkFailed if
    Spark doesn't start.
    """
    with _START:
        # The workers must be this Python: another lacks our packages, or doesn't answer within Spark's 10 s.
        os.environ["PYSPARK_PYTHON"] = sys.executable
        conf = SparkConf(loadDefaults=False)
        settings = session_conf(master, app_name, jar_paths(cache_directory()))
        conf.setAll(list({**settings, **(extra_conf or {})}.items()))
        try:
            if SparkContext._gateway is None:
                SparkContext._ensure_initialized(gateway=_launch(conf), conf=conf)
            return SparkSession.builder.config(conf=conf).getOrCreate()
        except (PySparkException, OSError) as error:
            raise SparkFailed(f"Spark did not start with master {master}: {error}") from error


def shape_session(spark: SparkSession) -> SparkSession:
    """A session with settings of its own, on the same Spark."""
    return spark.newSession()


def stop_session(spark: SparkSession) -> None:
    """Stop Spark, with whatever still runs in it. Blocks."""
    with _START:
        spark.stop()


def session_conf(master: str, app_name: str, jars: list[Path]) -> dict[str, str]:
    """Our settings for a master."""
    conf = {
        "spark.master": master,
        "spark.app.name": app_name,
        "spark.jars": ",".join(map(str, jars)),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # Shapes flush side by side: FIFO would let one large flush hold up all small ones.
        "spark.scheduler.mode": "FAIR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # A flush rewrites each file that holds one of its keys: better many small ones.
        "spark.databricks.delta.optimize.maxFileSize": str(_FILE_BYTES),
        "spark.databricks.delta.optimize.minFileSize": str(_FILE_BYTES // 2),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_log_settings()}",
        "spark.driver.memory": "2g",
    }
    if master == LOCAL or master.startswith(f"{LOCAL}["):
        # On one machine a task or job costs more than the rows in it. Adaptive execution makes a job of each
        # stage: a MERGE of one row into a million has 6 without it and 12 with it.
        conf |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.adaptive.enabled": "false",
            "spark.default.parallelism": str(_LOCAL_PARTITIONS),
            "spark.sql.shuffle.partitions": str(_LOCAL_PARTITIONS),
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(_LOCAL_PARTITIONS),
            "spark.databricks.delta.snapshotPartitions": "2",
        }
    return conf


def check_storage(url: str, conf: Mapping[str, str]) -> None:
    """Refuse a storage on which a former leader's commit could overwrite the new one's.

    S3 does not say that a file exists already: Delta's own LogStore for it is safe within one JVM only. So
    `s3a://` needs a LogStore for several writers, set by the operator.
    """
    scheme = urlsplit(url).scheme
    if scheme not in ("s3", "s3a", "s3n"):
        return
    setting = f"spark.delta.logStore.{scheme}.impl"
    log_store = conf.get(setting, "")
    if not log_store or log_store.endswith("S3SingleDriverLogStore"):
        raise StorageRefused(
            f"storage {url}: two leaders could overwrite each other's commits. Set {setting} to a LogStore "
            "for several writers, such as io.delta.storage.S3DynamoDBLogStore"
        )


def _log_settings() -> str:
    return Path(str(files("penstock.spark") / "log4j2.properties")).as_uri()


def _launch(conf: SparkConf) -> object:
    gateway = launch_gateway(conf, {"stderr": PIPE})  # type: ignore[no-untyped-call]
    threading.Thread(
        target=_pass_on, args=(gateway.proc.stderr,), name="penstock-spark-stderr", daemon=True
    ).start()
    return gateway


def _pass_on(lines: IO[bytes]) -> None:
    """Copy what Java writes to our own stderr, but for its chatter."""
    for line in lines:
        if _JAVA_CHATTER not in line:
            os.write(2, line)

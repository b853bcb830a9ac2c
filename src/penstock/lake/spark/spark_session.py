"""The Spark session: made once for the process, with one child session a shape; and what goes wrong in it.

Making it takes seconds and blocks: call it in a thread. A session's settings are shared by all threads that
use it, and a flush sets its transaction's name and version there: each shape works in a session of its own.

Spark's errors are pages of stack traces, some with rows' values. `plain_errors` makes one line of them. An
error of ours, raised in a worker, comes out of Spark as the text of a traceback: workers say theirs by
`saying_errors`, in a form that is found in any text, and it becomes the error that it was.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from subprocess import DEVNULL, PIPE, TimeoutExpired
from typing import IO, Any, Final

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from penstock.errors import PenstockError
from penstock.lake.errors import SparkError, SparkFailed, StorageFailed
from penstock.lake.spark.class_archive import archive_file, reading
from penstock.lake.spark.jars import cache_directory, jars_for_spark
from penstock.lake.spark.session_conf import is_local, session_conf, with_theirs

HADOOP_VERSION: Final = "3.5.0"
"""Spark's own; its S3 client has to be the same."""
_START: Final = threading.Lock()
# Java says this of a module that Spark asks for, in a tone that worries people.
_JAVA_CHATTER: Final = b"Using incubator modules"
_SAID: Final = re.compile(r"penstock-worker-error: (?=\[)")
# SQLSTATE's class of errors that come of a value, and `raise_error`'s: their messages show it.
_OF_A_VALUE: Final = re.compile(r"\[([A-Z0-9_.]+)\](?:(?!\[[A-Z0-9_.]+\]).)*?SQLSTATE: (?:22|P0)", re.DOTALL)
_STORAGE_TROUBLES: Final = {
    "No space left on device": "make room there, and where Spark keeps its scratch files (SPARK_LOCAL_DIRS)",
    "Disk quota exceeded": "raise the quota, or use another storage",
    "Read-only file system": "mount it writable, or use another storage",
    "Permission denied": "give this user the right to write there",
    "Access Denied": "give this user the right to write there",
    "Mkdirs failed to create": "make that directory writable, with no file in its place",
    "ParentNotDirectoryException": "a file stands where a directory should: move it, or use another storage",
    "S3AFileSystem not found": "add Hadoop's client: --conf spark.jars.packages=org.apache.hadoop:hadoop-aws:"
    + HADOOP_VERSION,
    "Not a directory": "a file stands where a directory should: move it, or use another storage",
}
_LINE_LENGTH: Final = 300
_LAST_BREATH_S: Final = 5.0


def open_session(
    master: str = "local[2]",
    app_name: str = "penstock",
    extra_conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """The process's session; made at the first call. Blocks for seconds, so call it in a thread.

    `extra_conf` goes over our own settings, as `with_theirs` says. JarsMissing if Delta's jars were not
    fetched, LogStoreMissing if ours isn't built, SparkFailed if Spark doesn't start.
    """
    with _START:
        # Without one the workers are whatever `python3` is: it may lack our packages, or not answer within
        # Spark's 10 s. On a cluster the operator knows where the right one is.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        _hush_loggers()
        conf = SparkConf(loadDefaults=False)
        settings = session_conf(master, app_name, jars_for_spark(cache_directory()))
        if is_local(master):
            settings = with_theirs(settings, {"spark.driver.extraJavaOptions": reading(archive_file())})
        conf.setAll(list(with_theirs(settings, extra_conf or {}).items()))
        try:
            if SparkContext._gateway is None:
                SparkContext._ensure_initialized(gateway=_launch(conf), conf=conf)
            return SparkSession.builder.config(conf=conf).getOrCreate()
        except (PySparkException, Py4JError, OSError) as error:
            raise SparkFailed(f"Spark did not start with master {master}: {_one_line(str(error))}") from error


def shape_session(spark: SparkSession) -> SparkSession:
    """A session with settings of its own, on the same Spark."""
    return spark.newSession()


def stop_session(spark: SparkSession) -> None:
    """Stop Spark, with whatever still runs in it. Blocks.

    Who stops a service may have told Java too, as systemd does: it is fine if that ends by itself meanwhile.
    """
    with _START:
        if java_exit_code() is not None:
            return
        try:
            spark.stop()
        except (Py4JError, OSError):
            if java_exit_code(_LAST_BREATH_S) is None:
                raise


def end_java(spark: SparkSession, wait_s: float) -> int | None:
    """Stop Spark and the Java that it runs in; how that has ended, or None if it hasn't. Blocks."""
    stop_session(spark)
    gateway: Any = SparkContext._gateway
    gateway.shutdown()
    # Java ends by itself when whoever started it is gone.
    gateway.proc.stdin.close()
    return java_exit_code(wait_s)


def java_exit_code(wait_s: float = 0.0) -> int | None:
    """How the Java that Spark runs in has ended; None while it lives. Blocks for `wait_s` at most."""
    gateway: Any = SparkContext._gateway
    if gateway is None:
        return None
    try:
        return int(gateway.proc.wait(wait_s))
    except TimeoutExpired:
        return None


@contextmanager
def saying_errors() -> Iterator[None]:
    """In a worker: raise our own errors in the form that `plain_errors` looks for."""
    try:
        yield
    except PenstockError as error:
        said = json.dumps([type(error).__name__, str(error)])
        raise RuntimeError(f"penstock-worker-error: {said}") from None


@contextmanager
def plain_errors(path: str) -> Iterator[None]:
    """In the driver: turn what Spark raises about the table at `path` into one of our errors.

    That is the error that a worker said, StorageFailed, or SparkError with the first line of the message.
    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
        plain = plain_error(path, str(error))
        # The original would show the value.
        raise plain from (None if _OF_A_VALUE.search(str(error)) else error)


def plain_error(path: str, text: str) -> PenstockError:
    """The error that a text of Spark's stands for."""
    if (said := _SAID.search(text)) is not None:
        (kind, sentence), _ = json.JSONDecoder().raw_decode(text, said.end())
        return _kinds(PenstockError).get(kind, SparkError)(sentence)
    for trouble, fix in _STORAGE_TROUBLES.items():
        if trouble in text:
            return StorageFailed(f"can't write {path}: {trouble}; {fix}")
    if (of_a_value := _OF_A_VALUE.search(text)) is not None:
        return SparkError(
            f"{path}: a value does not fit what is done with it ({of_a_value[1]}). Fix: if the shape has a"
            " where, let it compare values of one type"
        )
    return SparkError(f"{path}: {_one_line(text)}")


def _one_line(text: str) -> str:
    """What an error of Spark's says, without where in Java."""
    lines = [line.strip(": ") for line in text.splitlines() if line.strip(": ")]
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling"):
        del lines[0]
    return "".join(lines[:1])[:_LINE_LENGTH]


def _kinds(kind: type[PenstockError]) -> dict[str, type[PenstockError]]:
    """An error's class and all below it, by name."""
    below = [_kinds(each) for each in kind.__subclasses__()]
    return {kind.__name__: kind} | {name: each for kinds in below for name, each in kinds.items()}


def _hush_loggers() -> None:
    """What Spark's Python logs, beside raising it, has values of rows in it; or is a page long."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    # Py4J says so by the root logger when Java is gone.
    logging.getLogger().addFilter(_is_not_py4j)


def _is_not_py4j(record: logging.LogRecord) -> bool:
    return record.module not in ("clientserver", "java_gateway")


def _launch(conf: SparkConf) -> object:
    # Delta prints a line for each VACUUM.
    gateway = launch_gateway(conf, {"stdout": DEVNULL, "stderr": PIPE})  # type: ignore[no-untyped-call]
    threading.Thread(
        target=_pass_on, args=(gateway.proc.stderr,), name="penstock-spark-stderr", daemon=True
    ).start()
    return gateway


def _pass_on(lines: IO[bytes]) -> None:
    """Copy what Java writes to our own stderr, but for its chatter."""
    for line in lines:
        if _JAVA_CHATTER not in line:
            os.write(2, line)

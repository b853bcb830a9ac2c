"""A table's Delta log, as Delta's own Java reads it, and how it is kept short.

Delta cleans its log once a day, behind the checkpoint of a flush that then lists all of it; and the checksums
that it writes beside each commit stay as long as that. So upkeep does both: `shorten`.
"""

from __future__ import annotations

import json
from typing import Any

import structlog
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from penstock.lake.delta import version_checksums
from penstock.lake.delta.log_files import S3
from penstock.lake.errors import StorageFailed
from penstock.lake.spark.log_store import say_whole_listing

_logger = structlog.get_logger()

Actions = list[dict[str, Any]]
"""What a commit does, as the log has it."""


class DeltaLog:
    """The log of the table at `path`, read through `spark`. Everything blocks."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._path = path
        self._checksums_since = 0
        """Versions below have none any more."""

    def snapshot(self) -> Any:
        """The table's newest state, as Delta has it; its version is -1 if there is no table."""
        log = self._log()
        nothing = _none(log)
        newest = log.update(False, nothing, nothing)
        if self._is_in_bucket:
            say_whole_listing(self._jvm.penstock.S3LogStore.wholeListing())
        return newest

    def version(self) -> int:
        """The table's newest version; -1 if there is no table."""
        return int(self.snapshot().version())

    def commit(self, version: int) -> Actions | None:
        """What a version's commit does; None if the log has it no more."""
        log = self._log()
        name = self._jvm.org.apache.spark.sql.delta.util.FileNames.unsafeDeltaFile(log.logPath(), version)
        try:
            text = log.store().read(name, log.newDeltaHadoopConf()).mkString("\n")
        except Py4JJavaError as error:
            if "FileNotFoundException" in str(error.java_exception):
                return None
            raise
        return [json.loads(line) for line in text.split("\n") if line]

    def ends_at(self, version: int) -> bool:
        """Whether this version's commit is there and the next one's is not. Reads neither."""
        log = self._log()
        files, names = log.logPath(), self._jvm.org.apache.spark.sql.delta.util.FileNames
        system = files.getFileSystem(log.newDeltaHadoopConf())
        this, following = (names.unsafeDeltaFile(files, each) for each in (version, version + 1))
        return bool(system.exists(this)) and not system.exists(following)

    def properties(self) -> dict[str, str]:
        """The table's properties."""
        return dict(metadata_of(self.snapshot())["configuration"])

    def shorten(self) -> None:
        """Delete commits older than the table's `delta.logRetentionDuration`, by Delta's own rules.

        They keep whatever a reader of the oldest version that stays needs. Checksums below the last
        checkpoint go at once.
        """
        log, snapshot = self._log(), self.snapshot()
        minute = self._jvm.org.apache.spark.sql.delta.TruncationGranularity.MINUTE()
        log.cleanUpExpiredLogs(snapshot, _none(log), _none(log), minute)
        self._delete_checksums(int(snapshot.logSegment().checkpointProvider().version()))

    def _delete_checksums(self, below: int) -> None:
        if not self._is_in_bucket:
            version_checksums.delete_from_directory(self._path, below)
            return
        # A table that was put in this one's place begins at 0 again.
        since = self._checksums_since if self._checksums_since <= below else 0
        try:
            version_checksums.delete_from_bucket(self._path, since, below)
        except StorageFailed as error:
            # They take room and harm nobody: the rest of upkeep counts as done.
            _logger.warning("checksums_left", table=self._path, detail=str(error))
        else:
            self._checksums_since = max(below, 0)

    @property
    def _is_in_bucket(self) -> bool:
        return self._path.startswith(S3)

    @property
    def _jvm(self) -> Any:
        return self._spark._jvm

    def _log(self) -> Any:
        return delta_log_of(self._spark, self._path)


def delta_log_of(spark: SparkSession, path: str) -> Any:
    """Delta's own object. What it does in this thread, it does in this session."""
    jvm: Any = spark._jvm
    # Some of Delta's code asks the thread for its session, and threads of ours have none.
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)
    return jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, path)


def metadata_of(snapshot: Any) -> dict[str, Any]:
    """A table's columns and properties, as its log has them."""
    return dict(json.loads(snapshot.metadata().json())["metaData"])


def protocol_of(snapshot: Any) -> dict[str, Any]:
    """What readers and writers of a table have to know, as its log has it."""
    return dict(json.loads(snapshot.protocol().json())["protocol"])


def _none(log: Any) -> Any:
    """Scala's word for an argument that is left out."""
    return getattr(log, "update$default$2")()

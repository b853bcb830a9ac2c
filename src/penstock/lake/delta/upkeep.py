"""Upkeep of a shape's Delta table: files of a good size, and none that nobody needs."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Final

from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from penstock.lake.delta.app_id import AppId
from penstock.lake.delta.conflicts import plain_conflicts
from penstock.lake.delta.data_files import DataFiles
from penstock.lake.delta.delta_log import DeltaLog
from penstock.lake.delta.rearrange import ill, note_transaction, rewrite, rows_a_file

UPKEEP_COMMITS: Final = 200


class Upkeep:
    """When a table is tended, and how. One that fails is left to the next time, or to the next who opens it.

    It is due once in UPKEEP_COMMITS commits, whoever made them and however many leaderships they took: the
    table itself says as of which version it was last tended. Shapes that started together don't reach it
    together: each counts from a number that its name gives.
    """

    def __init__(self, spark: SparkSession, path: str, app_id: AppId, log: DeltaLog) -> None:
        self._spark = spark
        self._path = path
        self._app_id = app_id
        self._log = log
        self._shift = zlib.crc32(app_id.shape.encode())
        self.version = -1
        """The newest that was seen."""
        self.tended_at = 0
        """The version as of which it was last tended, or tried to be."""

    def saw(self, version: int, tended: Iterable[int] = ()) -> None:
        """The table's newest version, and as of which versions it says that it was tended."""
        self.version = version
        if version >= 0:
            # A table that was put in this one's place has been tended by nobody.
            before = self.tended_at if self.tended_at <= version else 0
            self.tended_at = max([before, *tended])

    @property
    def is_due(self) -> bool:
        """By the last look at the table. Costs nothing."""
        turns = (self.version + self._shift) // UPKEEP_COMMITS
        return turns > (self.tended_at + self._shift) // UPKEEP_COMMITS

    def run(self, files: DataFiles | None) -> None:
        """Optimize, vacuum and shorten the log. `files`: those of the newest version, if they are known."""
        self.tended_at = self.version
        self.optimize(files)
        self.vacuum()
        self.shorten_log()
        with plain_conflicts(self._path):
            self.tended_at = note_transaction(self._spark, self._path, self._app_id.upkeep)

    def optimize(self, files: DataFiles | None) -> None:
        """Split large data files and put small ones together, by key. The offset and the rows stay."""
        if files is None or not files.key:
            return
        wanted = rows_a_file(files.all())
        chosen = ill(files.all(), files.key[0], wanted)
        if chosen:
            with plain_conflicts(self._path):
                rewrite(self._spark, self._path, chosen, files.key, wanted)

    def vacuum(self) -> None:
        """Delete files that no version of the last day needs."""
        with plain_conflicts(self._path):
            DeltaTable.forPath(self._spark, self._path).vacuum()

    def shorten_log(self) -> None:
        """Delete what the log holds of older versions than the table's properties ask for."""
        with plain_conflicts(self._path):
            self._log.shorten()

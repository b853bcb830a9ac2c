"""A table of `penstock bench shapes` that grows old: what a one-row flush costs then."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from penstock.bench.shapes_backlog import ORDERS
from penstock.bench.spark_table import APP, BenchTable
from penstock.errors import PenstockError
from penstock.lake.jobs.changes import ShapeLayout

_ROWS: Final = (
    "id",
    "cast(id % 977 as int) customer",
    "'open' status",
    "cast(id * 1.25 as decimal(12, 2)) amount",
    "'note for order ' || id note",
    "timestamp'2026-01-01 00:00:00Z' at",
)
_VALUES: Final = (
    "%(id)d",
    "%(customer)d",
    '"paid"',
    "%(amount).2f",
    '"note for order %(id)d"',
    '"2026-01-02 00:00:00+00"',
)
_PARTS: Final = 30
_CHECKPOINT_EVERY: Final = 100


class AgingTable(BenchTable):
    """A table of orders, with ids from 1 to `rows`."""

    def __init__(self, spark: SparkSession, directory: Path, layout: ShapeLayout, rows: int) -> None:
        super().__init__(spark, directory, ORDERS, layout)
        self.rows = rows
        cells = [
            f'{{"name":"{column.name}","type":"{column.type}","value":{value}}}'
            for column, value in zip(layout.columns, _VALUES, strict=True)
        ]
        self._insert = f'{{"action":"I","columns":[{",".join(cells)}]}}'
        self._update = f'{{"action":"U","columns":[{",".join(cells)}],"identity":[{cells[0]}]}}'
        self.fill(self._spark.range(1, rows + 1, 1, _PARTS).selectExpr(*_ROWS))

    def update_one(self, chosen: random.Random) -> float:
        """Seconds that a flush of one row takes."""
        return self.update([chosen.randint(1, self.rows)])

    def update(self, ids: Iterable[int]) -> float:
        """Seconds that a flush of a transaction takes that updates these rows."""
        return self.flush(_frames(self._update, ids))

    def update_all_and_insert(self, count: int) -> float:
        """Seconds that a flush of a transaction takes that updates every row and inserts so many."""
        before, self.rows = self.rows, self.rows + count
        updates = _frames(self._update, range(1, before + 1))
        return self.flush(chain(updates, _frames(self._insert, range(before + 1, self.rows + 1))))

    def tend(self) -> None:
        """What upkeep does when it is due."""
        self.table.optimize()
        self.table.shorten_log()

    def grow_old(self, commits: int) -> None:
        """Put so many commits behind the table, each with three files, as flushes without effect leave them.

        They are written by hand, and the checkpoints among them are copies of a real one: real commits would
        take hours. Delta reads none of them again, but for the last. Upkeep would have deleted two of each
        commit's files, and by its age the third.
        """
        jvm: Any = self._spark._jvm
        delta_log = jvm.org.apache.spark.sql.delta.DeltaLog
        delta_log.forTable(self._spark._jsparkSession, self.table.path).checkpoint()
        first = self.table.read_state().version
        last = first + commits
        log = Path(self.table.path, "_delta_log")
        checkpoint = log / f"{first:020}.checkpoint.parquet"
        for version in range(first + 1, last + 1):
            _write_commit(log, version, self._at)
            if version == last or version % _CHECKPOINT_EVERY == 0:
                shutil.copy(checkpoint, log / f"{version:020}.checkpoint.parquet")
        # A checksum of the newest version would be read, and this is none.
        (log / f"{last:020}.crc").unlink()
        (log / f".{last:020}.crc.crc").unlink()
        pointer = json.loads((log / "_last_checkpoint").read_text()) | {"version": last}
        pointer.pop("checksum", None)
        (log / "_last_checkpoint").write_text(json.dumps(pointer))
        (log / "._last_checkpoint.crc").unlink(missing_ok=True)
        delta_log.clearCache()
        self.open()
        state = self.table.read_state()
        if (state.version, state.offset) != (last, self._at):
            raise PenstockError(f"the bench's own old table is at {state}, and not at version {last}")

    @property
    def commits_in_log(self) -> int:
        """How many commits its log holds."""
        return sum(name.endswith(".json") for name in os.listdir(Path(self.table.path, "_delta_log")))


def _frames(template: str, ids: Iterable[int]) -> Iterator[bytes]:
    for number in ids:
        values = {"id": number, "customer": number % 977, "amount": number * 1.25}
        yield (template % values).encode()


def _write_commit(log: Path, version: int, at: int) -> None:
    now_ms = int(time.time() * 1000)
    info = {"timestamp": now_ms, "operation": "MERGE", "readVersion": version - 1}
    txn = {"appId": str(APP), "version": at, "lastUpdated": now_ms}
    actions = [{"commitInfo": info}, {"txn": txn}]
    (log / f"{version:020}.json").write_text("".join(f"{json.dumps(each)}\n" for each in actions))
    (log / f"{version:020}.crc").write_text("{}")
    (log / f".{version:020}.crc.crc").write_bytes(b"crc")

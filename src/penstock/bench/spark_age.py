"""A table of `penstock bench shapes` that grows old: what a one-row flush costs then."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from penstock.changelog.log import ChangeLog, LogLimits
from penstock.lake.delta.shape_table import AppId, ShapeTable
from penstock.lake.jobs.changes import ShapeLayout
from penstock.lake.jobs.flush import flush
from penstock.lake.spark.spark_session import shape_session
from penstock.model.log_offset import LAST_BEFORE_REAL
from penstock.model.relation import Relation

_TABLE: Final = Relation("public", "orders")
_APP: Final = AppId("1", "bench", 1)
_ROWS: Final = (
    "id",
    "cast(id % 977 as int) customer",
    "'open' status",
    "cast(id * 1.25 as decimal(12, 2)) amount",
    "'note for order ' || id note",
    "timestamp'2026-01-01 00:00:00Z' at",
)
_PARTS: Final = 30


class AgingTable:
    """A table of `rows` orders, with ids from 1 on."""

    def __init__(self, spark: SparkSession, directory: Path, layout: ShapeLayout, rows: int) -> None:
        self._spark = shape_session(spark)
        self._directory = directory
        self._layout = layout
        self._flushes = 0
        self._at = 100
        self.table = ShapeTable(self._spark, str(directory / "table"), _APP)
        orders = self._spark.range(1, rows + 1, 1, _PARTS).selectExpr(*_ROWS)
        self.table.overwrite_from(orders, self._at, layout.key)

    def update(self, ids: Iterable[int]) -> float:
        """Seconds that a flush of a transaction takes that updates these rows."""
        return self._flush(self._frame("U", number) for number in ids)

    def insert(self, ids: Iterable[int]) -> float:
        """Seconds that a flush of a transaction takes that inserts these rows."""
        return self._flush(self._frame("I", number) for number in ids)

    def tend(self) -> None:
        """What upkeep does when it is due."""
        self.table.optimize()
        self.table.shorten_log()

    def grow_old(self, commits: int) -> None:
        """Put so many commits behind the table, each with three files, as flushes without effect leave them.

        They are written by hand, and the checkpoint behind them is a copy: real ones would take hours.
        """
        jvm: Any = self._spark._jvm
        delta_log = jvm.org.apache.spark.sql.delta.DeltaLog
        delta_log.forTable(self._spark._jsparkSession, self.table.path).checkpoint()
        first = self.table.read_state().version
        log, now_ms = Path(self.table.path, "_delta_log"), int(time.time() * 1000)
        for version in range(first + 1, first + commits + 1):
            info = {"timestamp": now_ms, "operation": "MERGE", "readVersion": version - 1}
            txn = {"appId": str(_APP), "version": self._at, "lastUpdated": now_ms}
            actions = [{"commitInfo": info}, {"txn": txn}]
            (log / f"{version:020}.json").write_text("".join(f"{json.dumps(each)}\n" for each in actions))
            if version < first + commits:
                (log / f"{version:020}.crc").write_text("{}")
                (log / f".{version:020}.crc.crc").write_bytes(b"crc")
        last = first + commits
        shutil.copy(log / f"{first:020}.checkpoint.parquet", log / f"{last:020}.checkpoint.parquet")
        pointer = json.loads((log / "_last_checkpoint").read_text()) | {"version": last}
        pointer.pop("checksum", None)
        (log / "_last_checkpoint").write_text(json.dumps(pointer))
        (log / "._last_checkpoint.crc").unlink(missing_ok=True)
        delta_log.clearCache()

    def _flush(self, payloads: Iterable[bytes]) -> float:
        self._flushes += 1
        self._at += 10
        directory = self._directory / f"log-{self._flushes}"
        directory.mkdir()
        log = ChangeLog(directory, LogLimits(min_free_bytes=0))
        for place, payload in enumerate(payloads):
            log.append(_TABLE, self._at, 2 * place, payload)
            if log.write_due:
                log.write()
        log.commit(self._at)
        log.flush(0.0)
        log.close()
        ranges = log.read_plan([_TABLE], LAST_BEFORE_REAL)
        started = time.perf_counter()
        flush(self._spark, self.table, self._layout, ranges, self._at)
        seconds = time.perf_counter() - started
        shutil.rmtree(directory)
        return seconds

    def _frame(self, action: str, number: int) -> bytes:
        values: Sequence[object] = (
            number,
            number % 977,
            "paid",
            number * 1.25,
            f"note for order {number}",
            "2026-01-02 00:00:00+00",
        )
        cells = [
            {"name": column.name, "type": column.type, "value": value}
            for column, value in zip(self._layout.columns, values, strict=True)
        ]
        content: dict[str, Any] = {"action": action, "columns": cells}
        if action == "U":
            content["identity"] = cells[:1]
        return json.dumps(content).encode()

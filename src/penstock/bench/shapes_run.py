"""`penstock shapes` as a process to be measured, with the Java that it starts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from penstock.bench.process_tree import tree_cpu_seconds
from penstock.local.penstock_process import PenstockProcess
from penstock.local.postgres import PrivatePostgres

_CLOSE_POLL_S: Final = 0.005
_PATIENCE_S: Final = 600.0
# Spark doesn't count what Parquet reads in threads of its own.
_COUNTING: Final = (
    "spark.eventLog.enabled=true",
    "spark.eventLog.rolling.enabled=false",
    "spark.eventLog.compress=false",
    "spark.hadoop.parquet.hadoop.vectored.io.enabled=false",
)


def write_shapes_file(path: Path, tables: Mapping[str, str]) -> None:
    """A file of shapes, by their names, of all columns and rows of these tables; `lake` is beside it."""
    shapes = (f'[[shape]]\nname = "{name}"\ntable = "{table}"\n' for name, table in tables.items())
    path.write_text('storage = "./lake"\n' + "".join(shapes))


class ShapesRun(PenstockProcess):
    """Starts shapes on a file, and measures the processes and the tables from outside."""

    def __init__(
        self,
        postgres: PrivatePostgres,
        database: str,
        file: Path,
        *,
        counts_bytes: bool = True,
        arguments: Sequence[str] = (),
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`counts_bytes`: for `bytes_read`, which has a price. `arguments`, `variables`: further ones."""
        self._lake = file.parent / "lake"
        self._task_log = file.parent / "spark-events"
        self.slot = f"{database}_{file.stem}"
        command = ["shapes", "--config", str(file), "--master", "local[2]", *arguments]
        if counts_bytes:
            self._task_log.mkdir()
            for setting in (*_COUNTING, f"spark.eventLog.dir={self._task_log.as_uri()}"):
                command += ["--conf", setting]
        own = {"LOG_MIN_FREE_BYTES": "0", "REPLICATION_SLOT": self.slot}
        super().__init__(command, {**postgres.env(database), **own, **variables})

    def close(self) -> None:
        """Let it flush before it ends."""
        self.end(60.0)
        super().close()

    def wait_for_snapshots(self, count: int) -> None:
        """Wait until this many shapes are copied."""
        self.wait_until(lambda: len(self.events("snapshot_done")) >= count, f"{count} snapshots", _PATIENCE_S)

    def wait_closely(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something whose moment is measured."""
        self.wait_until(condition, what, _PATIENCE_S, poll_s=_CLOSE_POLL_S)

    def commits(self, shape: str) -> int:
        """How many commits the shape's table has: a commit is visible when its file is there."""
        return len([name for name in os.listdir(self._lake / shape / "_delta_log") if name.endswith(".json")])

    def table_bytes(self, shape: str) -> int:
        """The size of the data files that the table's directory holds."""
        return sum(path.stat().st_size for path in (self._lake / shape).glob("*.parquet"))

    def cpu_seconds(self) -> float:
        """CPU time of all its processes so far."""
        return tree_cpu_seconds(self.pid)

    def bytes_read(self) -> int:
        """What Spark's tasks have read from files so far, as Spark counts it; whole jobs only."""
        (log,) = self._task_log.iterdir()
        events = (
            json.loads(line) for line in log.read_text().split("\n")[:-1] if '"SparkListenerTaskEnd"' in line
        )
        return sum(event["Task Metrics"]["Input Metrics"]["Bytes Read"] for event in events)

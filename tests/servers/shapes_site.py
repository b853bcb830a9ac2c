"""Where shapes work: one database, one slot, one storage, and what a test wants to know of them."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from penstock.local.penstock_process import PENSTOCK
from penstock.local.postgres import PrivatePostgres
from penstock.model.lsn import parse_lsn
from tests.servers.capture_process import CaptureProcess

Rows = list[tuple[Any, ...]]

_POLL_S = 0.05
# A short life doesn't pay for the better compiler. Without it Java keeps little room for code, and a full one
# ends all compiling.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=128m -XX:+UseSerialGC"
_SPARK = (
    "--master",
    "local[2]",
    "--conf",
    f"spark.driver.defaultJavaOptions={JAVA_OPTIONS}",
    "--conf",
    "spark.driver.memory=1g",
)


def shape_lines(name: str, *more: str, table: str = "", interval_ms: int = 100) -> str:
    """A shape over a table of its name, and further lines of it, for `ShapesSite.write_file`."""
    own = (f'name = "{name}"', f'table = "public.{table or name}"', f"flush_interval_ms = {interval_ms}")
    return "\n".join([*own, *more])


class ShapesProcess(CaptureProcess):
    """`penstock shapes` and the Java that it starts. `kill9` ends both at once."""

    def close(self) -> None:
        """See CaptureProcess. A frozen Java would not notice that its Python is gone."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        super().close()

    def wait_for_reason(self, shape: str, reason: str, timeout: float = 60.0) -> None:
        """Wait until the shape is to be snapshotted again because of this."""
        self.wait_for_log(
            "snapshot_needed", timeout, where=lambda line: line["shape"] == shape and reason in line["reason"]
        )

    def freeze_all(self) -> None:
        """Stop it and its Java in the middle of whatever they do."""
        os.killpg(self.pid, signal.SIGSTOP)

    def cont_all(self) -> None:
        """Let them go on."""
        os.killpg(self.pid, signal.SIGCONT)


class ShapesSite:
    """Starts `penstock shapes` on one shapes file, and compares its tables with Postgres."""

    def __init__(self, postgres: PrivatePostgres, database: str, directory: Path) -> None:
        self.postgres = postgres
        self.database = database
        self.directory = directory
        self.slot = f"shapes_{database}"[:60]
        self.file = directory / "shapes.toml"

    def write_file(self, *shapes: str) -> None:
        """The shapes file: each shape as the lines of its table."""
        tables = "\n".join(f"[[shape]]\n{shape}" for shape in shapes)
        self.file.write_text(f'storage = "./lake"\n{tables}\n')

    def shapes(self, *args: str, before: Sequence[str] = (), **over: str) -> ShapesProcess:
        """Start `penstock shapes`; `over` are variables, `before` is a program that starts it."""
        env = {
            **self.postgres.env(self.database),
            "REPLICATION_SLOT": self.slot,
            "STANDBY_RETRY_INTERVAL_S": "0.5",
            "LEADER_TIMEOUT_S": "5",
            "LOG_MIN_FREE_BYTES": "0",
            **over,
        }
        return ShapesProcess(
            env,
            ("shapes", "--config", str(self.file), *_SPARK, *args),
            program=(*before, *PENSTOCK),
        )

    def verify(self, *args: str) -> ShapesProcess:
        """Start `penstock verify`."""
        env = {**self.postgres.env(self.database), "REPLICATION_SLOT": self.slot}
        return ShapesProcess(env, ("verify", "--config", str(self.file), *_SPARK, *args))

    def assert_verified(self, timeout: float = 120.0, *args: str) -> None:
        """`penstock verify` finds every table equal, be it while all is written and flushed."""
        with self.verify(*args) as verify:
            assert verify.wait(timeout) == 0, verify.log_text()[-4000:]

    def once(self, *args: str, expect: int = 0, timeout: float = 120.0, **over: str) -> list[dict[str, Any]]:
        """Run `penstock shapes --once`; returns what it logged."""
        with self.shapes("--once", *args, **over) as process:
            code = process.wait(timeout)
            assert code == expect, f"exit {code}, not {expect}:\n{process.log_text()[-4000:]}"
            return process.events()

    def sql(self, statements: str) -> Rows:
        """Run SQL in the database."""
        return self.postgres.psql(statements, self.database)

    def table(self, shape: str) -> Path:
        """Where a shape's table is."""
        return self.directory / "lake" / shape

    def version(self, shape: str) -> int:
        """How many commits a shape's table has, from 0."""
        return DeltaTable(str(self.table(shape))).version()

    def rows(self, shape: str, columns: Sequence[str]) -> Rows:
        """What a shape's table holds, sorted."""
        table = DeltaTable(str(self.table(shape))).to_pyarrow_table(columns=list(columns))
        return _sorted(list(zip(*[table[name].to_pylist() for name in columns], strict=True)))

    def assert_equal(self, shape: str, columns: Sequence[str], query: str) -> None:
        """A shape's table holds what the query gives, row by row."""
        found, expected = self.rows(shape, columns), _sorted(self.sql(query))
        missing = [row for row in expected if row not in set(found)] if found != expected else []
        extra = [row for row in found if row not in set(expected)] if found != expected else []
        assert found == expected, f"{shape}: missing {missing[:5]}, extra {extra[:5]}"

    def wait_equal(
        self, shape: str, columns: Sequence[str], query: str, timeout: float = 60.0, running: Any = None
    ) -> None:
        """Wait until a shape's table holds what the query gives."""

        def equal() -> bool:
            return self.rows(shape, columns) == _sorted(self.sql(query))

        try:
            self.wait_until(equal, timeout, running)
        except AssertionError:
            self.assert_equal(shape, columns, query)

    def wait_until(self, true: Callable[[], bool], timeout: float = 60.0, running: Any = None) -> None:
        """Wait until something is so; a process in `running` must live meanwhile."""
        deadline = time.monotonic() + timeout
        while not true():
            assert running is None or running.running, "penstock has ended"
            assert time.monotonic() < deadline, f"not so within {timeout} s"
            time.sleep(_POLL_S)

    def confirmed_lsn(self) -> int:
        """Where the slot stands."""
        ((lsn,),) = self.sql(
            f"SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{self.slot}'"
        )
        return parse_lsn(lsn)

    def awaited_shapes(self) -> list[str]:
        """The shapes whose tables don't count before they are snapshotted: the slot doesn't wait for them."""
        entries = self._entries().items()
        return [name for name, entry in entries if entry["awaits_snapshot"] is not None]

    def wait_until_seen(self, *shapes: str, since_lsn: int = 0, timeout: float = 60.0) -> None:
        """Until the registry knows that the shapes' tables had their partitions behind their last flush.

        `since_lsn`: from before the last change of theirs.
        """

        def seen() -> bool:
            entries = self._entries()
            return all(parse_lsn(entries[name]["looked_lsn"] or "0/0") > since_lsn for name in shapes)

        self.wait_until(seen, timeout)

    def _entries(self) -> dict[str, Any]:
        registry = json.loads((self.directory / "lake" / "_penstock" / "registry").read_bytes())
        entries: dict[str, Any] = registry["shapes"]
        return entries

    def wait_until_nobody_leads(self) -> None:
        """The server has noticed that a killed leader is gone."""
        held = (
            "SELECT 1 FROM pg_locks JOIN pg_database d ON d.oid = database AND datname = current_database()"
        )
        self.wait_until(lambda: not self.sql(f"{held} WHERE locktype = 'advisory'"))

    def wal_lsn(self) -> int:
        """Where the server writes."""
        ((lsn,),) = self.sql("SELECT pg_current_wal_flush_lsn()::text")
        return parse_lsn(lsn)


def _sorted(rows: Rows) -> Rows:
    try:
        return sorted(rows)
    except TypeError:  # nulls
        return sorted(rows, key=_order)


def _order(row: tuple[Any, ...]) -> tuple[tuple[bool, Any], ...]:
    return tuple((value is None, 0 if value is None else value) for value in row)

"""How `penstock shapes --once` ends. In this process, on the Spark that is here."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from structlog.testing import capture_logs

from penstock.errors import LineLost
from penstock.local.postgres import PrivatePostgres
from penstock.postgres.leader.lock import slot_hash64
from penstock.settings.loading import load_shapes_settings
from penstock.shapes.app import ShapesApp
from penstock.shapes.definition.shapes_file import load_shapes_file
from penstock.shapes.progress import LoggedProgress
from tests.servers.shapes_site import ShapesSite
from tests.spark.conftest import ONCE, RunOnce, Started

Once = Callable[[], int]


@pytest.fixture
def site(postgres: PrivatePostgres, database: str, tmp_path: Path) -> ShapesSite:
    site = ShapesSite(postgres, database, tmp_path)
    site.sql(
        "CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t SELECT g, 0 FROM generate_series(1, 9) g"
    )
    site.write_file('name = "t"\ntable = "public.t"')
    return site


@pytest.fixture
def once(site: ShapesSite, run_once: RunOnce) -> Once:
    return lambda: run_once(site)


def test_all_that_is_there_is_in_the_table(site: ShapesSite, once: Once) -> None:
    assert once() == 0
    site.assert_equal("t", ["id", "n"], "SELECT id, n FROM t")
    site.sql("UPDATE t SET n = 1 WHERE id < 4; DELETE FROM t WHERE id = 9")
    before = site.wal_lsn()
    assert once() == 0
    site.assert_equal("t", ["id", "n"], "SELECT id, n FROM t")
    assert site.confirmed_lsn() >= before


def test_what_others_did_to_the_rows_meanwhile_is_noticed(
    site: ShapesSite, once: Once, started: Started
) -> None:
    """RESTORE leaves our transaction as it is."""
    assert once() == 0
    site.sql("UPDATE t SET n = 1 WHERE id < 4")
    assert once() == 0
    table = f"delta.`{site.table('t')}`"
    started.spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('theirs' = 'x')")
    started.spark.sql(f"RESTORE TABLE {table} TO VERSION AS OF 0")
    site.sql("UPDATE t SET n = 2 WHERE id = 9")

    with capture_logs() as said:
        assert once() == 0, said

    site.assert_equal("t", ["id", "n"], "SELECT id, n FROM t")
    (found,) = [line for line in said if line["event"] == "foreign_commit"]
    assert found["log_level"] == "error"
    assert "RESTORE" in found["detail"]


def test_another_leads(site: ShapesSite, once: Once) -> None:
    with (
        psycopg.connect(site.postgres.conninfo(site.database), autocommit=True) as session,
        capture_logs() as said,
    ):
        session.execute("SET application_name = 'an old script'")
        session.execute("SELECT pg_advisory_lock(%s)", [slot_hash64(site.slot)])
        assert once() == 3
    (line,) = [line for line in said if line["event"] == "another_leads"]
    assert "an old script" in line["detail"]


def test_a_shape_that_fails_for_long(site: ShapesSite, once: Once) -> None:
    assert once() == 0
    hidden = site.table("t").rename(site.directory / "hidden")
    site.table("t").write_text("in the way")
    site.sql("UPDATE t SET n = 2")

    with capture_logs() as said:
        assert once() == 1

    (line,) = [line for line in said if line["event"] == "stalled"]
    assert re.match(r"shape t made no progress for \d+ s: ", line["detail"])
    assert str(site.table("t")) in line["detail"]
    site.table("t").unlink()
    hidden.rename(site.table("t"))
    assert once() == 0
    site.assert_equal("t", ["id", "n"], "SELECT id, n FROM t")


class BrokenLeadership:
    """Ends with the line, after some time."""

    def __init__(self, lasts_s: float, *, has_led: bool) -> None:
        self._lasts_s = lasts_s
        self.has_led = has_led
        self.held = None
        self.led_since = math.inf
        self.confirmed_lsn = 0

    async def run(self) -> None:
        if self.has_led:
            self.led_since = time.monotonic()
        await asyncio.sleep(self._lasts_s)
        raise LineLost("the replication connection broke")


class DoneLeadership:
    """Has nothing left to do."""

    has_led = True
    held = None
    is_given_up = False
    confirmed_lsn = 0

    async def run(self) -> None:
        return None


class StagedApp(ShapesApp):
    """With these leaderships, one after the other."""

    leaderships: Iterator[BrokenLeadership | DoneLeadership]

    async def _check_shapes(self) -> None:
        return None

    def _new_leadership(self) -> Any:
        return next(self.leaderships)


@pytest.mark.parametrize(("has_led", "code"), [(True, 0), (False, 1)])
def test_a_line_that_breaks_late_is_taken_up_again(
    site: ShapesSite, started: Started, has_led: bool, code: int
) -> None:
    """STALL_S is for a run without progress: not for one that has led for longer than that."""
    settings = load_shapes_settings({"STALL_S": "1", "OPS_PORT": "0", "STANDBY_RETRY_INTERVAL_S": "0.2"})
    app = StagedApp(
        settings, load_shapes_file(site.file), ONCE, spark=started.spark, progress=LoggedProgress()
    )
    lasts_s = settings.change_log.stall_s + 0.5
    app.leaderships = iter([BrokenLeadership(lasts_s, has_led=has_led), DoneLeadership()])

    assert asyncio.run(app.run()) == code

"""`penstock status` without a process to ask: what Postgres, the registry and the tables tell is true."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from math import nan
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from deltalake import DeltaTable

from penstock.cli import main
from penstock.local.free_ports import free_port
from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from penstock.model.lsn import format_lsn
from tests.servers.capture_site import CaptureSite, wait_until
from tests.servers.shapes_fixtures import RunOnce, Serve
from tests.servers.shapes_site import ShapesSite, shape_lines


@pytest.fixture
def site(postgres: PrivatePostgres, database: str, kinesis: LocalKinesis, stream: str) -> CaptureSite:
    return CaptureSite(postgres, database, kinesis, stream)


class Command:
    """`penstock status`, run here."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], directory: Path
    ) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        # No .env of the developer's.
        monkeypatch.chdir(directory)

    def __call__(self, env: Mapping[str, str], *words: str) -> tuple[int, str, str]:
        for name, value in {**env, "OPS_PORT": str(free_port())}.items():
            self._monkeypatch.setenv(name, value)
        code = main(["status", *words])
        printed = self._capsys.readouterr()
        return code, printed.out, printed.err


def metric(ops: str, name: str) -> float:
    """Its value; not a number while there is none."""
    with urlopen(f"{ops}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return next((float(line.split()[1]) for line in lines if line.startswith(f"{name} ")), nan)


@pytest.fixture
def status(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    return Command(monkeypatch, capsys, tmp_path)


def test_a_capture(site: CaptureSite, status: Command) -> None:
    env = site.env()
    code, text, _ = status(env)
    assert code == 1
    assert f"  slot {site.slot} does not exist: " in text
    assert "\n  leader   nobody\n" in text

    with site.capture() as capture:
        capture.wait_for_log("streaming")
        watched = "; processes that watch the slot: 1\n"
        wait_until(lambda: watched in status(env)[1], "it watches the slot, on a session of its own")
        code, text, _ = status(env)
        assert (code, text.partition(" (")[0]) == (0, "led, nothing wrong is seen")
        assert "as Postgres tells: no penstock answers at http://127.0.0.1:" in text
        assert re.search(rf"\n  leader   pid \d+ \(penstock capture {site.slot} at 127.0.0.1\)", text)
        assert text.count(watched) == 1

        seen = json.loads(status(env, "--json")[1])
        row = site.slot_row()
        assert row is not None
        assert seen["outside"]["reader"].startswith(f"pid {row.active_pid} ")
        assert row.confirmed_lsn >= seen["slot"]["confirmed_lsn"] > 0
        assert seen["outside"]["note_lsn"] >= seen["slot"]["confirmed_lsn"]
        assert seen["outside"]["wal_status"] == "reserved"

    site.wait_until_free()
    wait_until(lambda: "\n  leader   nobody" in status(env)[1], "the lock is free, too")
    code, text, _ = status(env)
    assert (code, text.partition(" (")[0]) == (1, "not led, NOT READY")
    assert "\n  nobody leads: no process holds the slot's lock. Fix: start penstock capture\n" in text
    assert "and nobody reads it (read 0 s ago)\n" in text

    site.psql("CREATE TABLE t (); INSERT INTO t DEFAULT VALUES")
    site.psql(f"SELECT pg_replication_slot_advance('{site.slot}', pg_current_wal_flush_lsn())")
    code, text, _ = status(env)
    assert code == 1
    assert "\n  GAP: the slot was gone, or somebody moved it. The stream has everything up to " in text


def test_nobody_answers_at_all(site: CaptureSite, status: Command) -> None:
    code, text, errors = status({**site.env(), "PGPORT": str(free_port())})
    assert (code, text) == (2, "")
    assert re.fullmatch(
        r"no penstock answers at http://127\.0\.0\.1:\d+: .*refused; and can't connect to Postgres: .*refused"
        r".*\. Fix: start it, give its --url, or say by PGHOST .*\n",
        errors,
    )


def test_watching(site: CaptureSite, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock", "status", "--json", "--watch", "0.1"]
    env = {**site.env(), "OPS_PORT": str(free_port()), "PATH": "/usr/bin:/bin"}
    with subprocess.Popen(command, env=env, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        looks: list[dict[str, Any]] = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
    assert [(look["service"], look["phase"]) for look in looks] == [("capture", "not led")] * 3


def test_shapes_that_read_a_stream(
    shapes_site: ShapesSite, kinesis: LocalKinesis, stream: str, serve: Serve, status: Command
) -> None:
    shapes, site = shapes_site, CaptureSite(shapes_site.postgres, shapes_site.database, kinesis, stream)
    shapes.sql("CREATE TABLE orders (id int PRIMARY KEY); INSERT INTO orders VALUES (1)")
    shapes.write_file(shape_lines("orders"))
    url = f"kinesis://{stream}?slot={site.slot}"
    env = {**shapes.postgres.env(shapes.database), **kinesis.env(), "REPLICATION_SLOT": shapes.slot}
    words = ("--config", str(shapes.file), "--from", url)
    # How much WAL that is, is the whole server's affair.
    made = r"\n  shape    orders  \S+, (at most \S+ [kM]?B behind|up to date)\n"

    code, text, _ = status(env, *words)
    assert code == 1, text
    assert f"\n  {stream} has no manifests of the slot {site.slot}. Fix: " in text
    assert " does not exist" not in text

    port = str(free_port())
    source = f"\n  stream   {stream}, of slot {site.slot}; keeps records 24 h\n"
    ops, variables = f"http://127.0.0.1:{port}", dict[str, Any](kinesis.env(), OPS_PORT=port, STALL_S="60")

    def story() -> None:
        wait_until(lambda: re.search(made, status(env, *words)[1]), "the table is made", timeout=120)
        wait_until(lambda: metric(ops, "penstock_source_retention_seconds") == 24 * 3600, "it was asked")
        assert 23.9 * 3600 < metric(ops, "penstock_source_expires_seconds") <= 24 * 3600
        assert metric(ops, "penstock_slot_read_age_seconds") == 0
        code, text, _ = status(env, "--url", ops)
        assert code == 0, text
        assert source in text
        code, text, _ = status(env, *words)
        assert code == 0, text
        # The service runs here, too, and whatever it logs meanwhile stands above.
        assert re.search(r"^led, nothing wrong is seen \(", text, re.MULTILINE), text
        assert re.search(rf"\n  leader   pid \d+ \(penstock shapes {shapes.slot}", text)

    with site.capture(KINESIS_MARKED_STREAM="true") as capture:
        capture.wait_for_log("streaming")
        serve(shapes, story, stream=url, **variables)
        code, text, _ = status(env, *words)
        assert code == 1, text
        assert source in text
        assert re.search(
            r"\n  manifest up to \S+, .* below the server's WAL; the last came \d+ s ago\n", text
        )
        assert re.search(made, text)
        assert (
            "\n  nobody leads: no process holds the slot's lock. Fix: start penstock shapes --from\n" in text
        )
        assert "  slot     " not in text

        said = status(env, *words[:2])[1]
        assert (
            "which creates it; or, if they read a stream, say so here, too: --from kinesis://STREAM\n" in said
        )


def test_shapes(shapes_site: ShapesSite, run_once: RunOnce, status: Command) -> None:
    site = shapes_site
    site.sql("CREATE TABLE orders (id int PRIMARY KEY); INSERT INTO orders VALUES (1)")
    site.write_file(shape_lines("orders"))
    env = {**site.postgres.env(site.database), "REPLICATION_SLOT": site.slot}
    file = ("--config", str(site.file))

    assert "  shape    orders  awaits a snapshot: it is new\n" in status(env, *file)[1]

    assert run_once(site) == 0
    site.write_file(shape_lines("orders"), shape_lines("added", table="orders"))

    code, text, _ = status(env, *file)
    assert code == 1
    ((system_id,),) = site.sql("SELECT system_identifier::text FROM pg_control_system()")
    offset = DeltaTable(str(site.table("orders"))).transaction_version(f"penstock:{system_id}:orders:1")
    assert offset is not None
    assert re.search(
        rf"\n  shape    orders  {format_lsn(offset)}, (at most \S+ [kM]?B behind|up to date)\n", text
    )
    assert "\n  shape    added   awaits a snapshot: it is new\n" in text
    assert "\n  nobody leads: " in text

    site.sql("INSERT INTO orders VALUES (2)")
    site.sql(f"SELECT pg_replication_slot_advance('{site.slot}', pg_current_wal_flush_lsn())")
    assert "highest position ever confirmed from here: somebody moved it" in status(env, *file)[1]

"""`penstock init` on a real database: what it writes is what the other commands take."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from penstock.cli import main
from penstock.finding import Level
from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from penstock.model.relation import Relation
from penstock.settings.loading import load_shapes_settings
from penstock.shapes.definition.shapes_check import Read, look_at_shapes
from penstock.shapes.definition.shapes_file import load_shapes_file

TABLES = """
    CREATE TABLE orders (id int PRIMARY KEY, status text);
    INSERT INTO orders SELECT n, 'open' FROM generate_series(1, 1000) n;
    CREATE SCHEMA sales;
    CREATE TABLE sales.orders (id int PRIMARY KEY);
    CREATE TABLE "Order Lines" (order_id int, line int, PRIMARY KEY (order_id, line));
    CREATE TABLE keyless (id int);
    ALTER TABLE keyless REPLICA IDENTITY FULL;
    CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id);
    CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (10);
    CREATE TABLE parted_2 PARTITION OF parted FOR VALUES FROM (10) TO (20);
    CREATE UNLOGGED TABLE cache (id int PRIMARY KEY);
    CREATE VIEW open_orders AS SELECT * FROM orders WHERE status = 'open';
    ANALYZE
"""


@pytest.fixture
def directory(
    postgres: PrivatePostgres, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """An empty one, in which the database is known by its variables."""
    postgres.psql(TABLES, database)
    for name in [name for name in os.environ if name.startswith(("PG", "AWS", "KINESIS"))]:
        monkeypatch.delenv(name)
    for name, value in {**postgres.env(database), "PGPASSWORD": "hunter2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def forget_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on only `.env` knows it."""
    for name in [name for name in os.environ if name.startswith("PG")]:
        # Not delenv: what `.env` exports is to be forgotten with it.
        monkeypatch.setenv(name, "")


def test_what_is_written_is_accepted(
    directory: Path,
    kinesis: LocalKinesis,
    stream: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["init", "--stream", stream, "--region", kinesis.region]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out.splitlines() == [
        "wrote .env: the way to the database, without a password; readable for you alone",
        "wrote shapes.toml: 4 of 5 tables, each with its key and size",
        "next: penstock check",
        "      penstock check --config shapes.toml",
    ]
    env, shapes = directory / ".env", directory / "shapes.toml"
    assert env.stat().st_mode & 0o777 == 0o600
    for text in (printed.out, env.read_text(), shapes.read_text()):
        assert "hunter2" not in text

    file = load_shapes_file(shapes)
    assert {shape.name: shape.table for shape in file.shapes} == {
        "order_lines": Relation("public", "Order Lines"),
        "orders": Relation("public", "orders"),
        "parted": Relation("public", "parted"),
        "sales_orders": Relation("sales", "orders"),
    }
    text = shapes.read_text()
    assert "# public.orders, about 1,000 rows, " in text
    assert "# A where needs ALTER TABLE public.orders REPLICA IDENTITY FULL\n" in text
    assert "key id, replica identity default, 2 partitions\n" in text
    assert "# Left out: public.keyless has no key: " in text

    forget_the_way(monkeypatch)
    for name, value in kinesis.env().items():
        if name != "AWS_REGION":
            monkeypatch.setenv(name, value)
    assert main(["check"]) == 0, capsys.readouterr().out
    findings = asyncio.run(look_at_shapes(load_shapes_settings(), file, Read()))
    assert [finding for finding in findings if finding.level is Level.FAIL] == []


def test_nothing_is_replaced(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (directory / ".env").symlink_to("nowhere")

    assert main(["init"]) == 0
    assert capsys.readouterr().out.startswith("kept  .env, which was there\nwrote shapes.toml: ")
    assert not (directory / "nowhere").exists()

    (directory / "shapes.toml").write_text("mine")
    assert main(["init"]) == 2
    assert capsys.readouterr().err.startswith(".env and shapes.toml are both in .: nothing to write. Fix: ")
    assert (directory / "shapes.toml").read_text() == "mine"


def test_what_is_not_known_is_said(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (directory / "sub").mkdir()
    assert main(["init", "--directory", "sub"]) == 0
    next_line = "next: fill in AWS_REGION and KINESIS_STREAM in sub/.env, then penstock check\n"
    assert next_line in capsys.readouterr().out

    assert main(["init", "--directory", "missing"]) == 2
    assert capsys.readouterr().err == (
        "can't write missing/.env: No such file or directory. Fix: name a --directory that this user may"
        " write to\n"
    )


def test_a_database_without_a_table_that_can_be_followed(
    directory: Path, postgres: PrivatePostgres, database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    postgres.psql(
        "DROP SCHEMA sales, public CASCADE; CREATE SCHEMA public; CREATE TABLE t (id int)", database
    )

    assert main(["init"]) == 0

    assert "no shapes.toml: of 1 tables none can be followed. Fix: " in capsys.readouterr().out
    assert not (directory / "shapes.toml").exists()
    assert "#   public.t\n" in (directory / ".env").read_text()

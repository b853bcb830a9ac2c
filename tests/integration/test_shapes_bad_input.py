"""`penstock shapes` that can't work as it was called: a line for each mistake, with its fix, and exit 2."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.local.free_ports import free_port
from penstock.local.postgres import PrivatePostgres
from tests.servers.shapes_site import ShapesSite

LONG = 120.0
# Whoever gets as far as Spark ends with another sentence.
NO_SPARK = ("--master", "no-such-master")
RIGHT = 'name = "orders"\ntable = "public.orders"'
TABLES = """
CREATE TABLE orders (id int PRIMARY KEY, status varchar(9), note text, amount numeric(10,2));
CREATE VIEW seen AS SELECT * FROM orders;
CREATE UNLOGGED TABLE volatile (id int PRIMARY KEY);
CREATE TABLE keyless (id int);
CREATE TABLE late (id int PRIMARY KEY DEFERRABLE);
CREATE TABLE silent (id int PRIMARY KEY); ALTER TABLE silent REPLICA IDENTITY NOTHING;
CREATE TABLE spaced (id int PRIMARY KEY, "a b" int, _penstock_x int, total int, "Total" int);
CREATE TABLE mother (id int PRIMARY KEY); CREATE TABLE child () INHERITS (mother);
CREATE SCHEMA "My S";
CREATE TYPE "My S".t AS ENUM ('x'); CREATE TABLE odd (id int PRIMARY KEY, kind "My S".t);
"""


@pytest.fixture
def site(postgres: PrivatePostgres, database: str, tmp_path: Path) -> ShapesSite:
    site = ShapesSite(postgres, database, tmp_path)
    site.sql(TABLES)
    site.write_file(RIGHT)
    return site


@pytest.fixture
def guarded_role(postgres: PrivatePostgres) -> Iterator[str]:
    """A role that the server lets in over TCP only with its password."""
    role = f"guarded_{secrets.token_hex(4)}"
    rules = postgres.directory / "data" / "pg_hba.conf"
    before = rules.read_text()
    postgres.psql(f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'correct horse'")
    rules.write_text(f"host all,replication {role} 127.0.0.1/32 scram-sha-256\n{before}")
    postgres.psql("SELECT pg_reload_conf()")
    yield role
    rules.write_text(before)
    postgres.psql(f"SELECT pg_reload_conf(); DROP ROLE {role}")


def refusal(site: ShapesSite, *args: str, **over: str) -> list[str]:
    """What it says before it ends with exit 2, without Spark."""
    with site.shapes(*NO_SPARK, *args, **over) as process:
        assert process.wait(LONG) == 2, process.log_text()
        return plain_lines(process.log_text())


def plain_lines(text: str) -> list[str]:
    assert "Traceback" not in text
    return [line for line in text.splitlines() if not line.startswith("{")]


def starts_of(site: ShapesSite, lines: list[str]) -> list[str]:
    """Each line names the file and a fix; these are what stands between them."""
    assert all(line.startswith(f"{site.file}: ") and ". Fix: " in line for line in lines), lines
    return [line.removeprefix(f"{site.file}: ").partition(". Fix: ")[0] for line in lines]


class TestWithoutSpark:
    def test_the_file_alone(self, site: ShapesSite) -> None:
        site.write_file(
            'name = "Bad Name"\ntable = "orders"',
            'name = "twice"\ntable = "public.orders"\nwhere = "  "\nfilter = "x"',
            'name = "twice"\ntable = 7\ncolumns = []\nflush_interval_ms = 1',
            'name = "cased"\ntable = "public.orders"\ncolumns = ["id", "ID", "note", "note"]',
        )
        assert starts_of(site, refusal(site)) == [
            "2 shapes are named 'twice'",
            "shape 'Bad Name': name is 'Bad Name'",
            "shape 'Bad Name': table is 'orders', not schema.table",
            "shape 'twice': unknown key 'filter'",
            "shape 'twice': where is empty",
            "shape 'twice': table is 7, not text",
            "shape 'twice': columns is empty",
            "shape 'twice': flush_interval_ms is 1",
            "shape 'cased': columns holds 'note' 2 times",
            "shape 'cased': columns holds 'id' and 'ID', equal but for case",
        ]

    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("", ["storage is missing", "no shape"]),
            ("storage = ", ["not TOML: Invalid value (at end of document)"]),
            ('storage = "ftp://x:secret@host/"\n[[shape]]\n' + RIGHT, ["storage is 'ftp://***@host/'"]),
        ],
    )
    def test_a_file_that_says_nothing(self, site: ShapesSite, text: str, found: list[str]) -> None:
        site.file.write_text(text)
        assert starts_of(site, refusal(site)) == found

    def test_no_file(self, site: ShapesSite) -> None:
        site.file.unlink()
        assert refusal(site) == [f"{site.file}: no such file. Fix: give the path of a shapes file"]

    def test_an_unknown_name_to_snapshot_again(self, site: ShapesSite) -> None:
        assert refusal(site, "--resnapshot", "order") == [
            f"{site.file}: no shape 'order'. Fix: give --resnapshot one of its names"
        ]

    def test_the_database(self, site: ShapesSite) -> None:
        tables = ("seen", "volatile", "keyless", "late", "silent", "spaced", "mother", "odd")
        site.write_file(
            'name = "typo"\ntable = "public.ordesr"',
            'name = "narrow"\ntable = "public.orders"\ncolumns = ["status", "amuont"]',
            'name = "judging"\ntable = "public.orders"\nwhere = "amount > 1"',
            'name = "system"\ntable = "pg_catalog.pg_class"',
            *(f'name = "{table}"\ntable = "public.{table}"' for table in tables),
        )
        lines = refusal(site)
        found = starts_of(site, lines)
        assert [each.split(",")[0].split(":")[1].strip() for each in found] == [
            "there is no table public.ordesr",
            "columns lacks 'id'",
            "public.orders has no column 'amuont'",
            "where needs REPLICA IDENTITY FULL on public.orders",
            "pg_catalog.pg_class is a system table",
            "public.seen is a view",
            "public.volatile is unlogged",
            "public.keyless has no key",
            "the key of public.late is deferrable",
            "updates and deletes of public.silent don't carry the key (id)",
            "a Delta table can't hold a column named 'a b'",
            "column '_penstock_x' begins with _penstock_",
            "columns 'total' and 'Total' are equal but for case",
            "other tables inherit from public.mother",
            "wal2json can't write the type \"My S\".t of column 'kind'",
        ]
        assert lines[0].endswith("Fix: did you mean public.orders?")
        assert lines[3].endswith("Fix: ALTER TABLE public.orders REPLICA IDENTITY FULL")
        assert lines[6].endswith("Fix: ALTER TABLE public.volatile SET LOGGED")

    def test_a_file_in_the_place_of_the_storage(self, site: ShapesSite) -> None:
        (site.directory / "lake").write_text("not a lake")
        assert refusal(site) == [
            f"can't read {site.directory}/lake/_penstock/registry: Not a directory. Fix: move away the file"
            " that stands in the place of one, or use another storage"
        ]

    def test_no_postgres_and_once(self, site: ShapesSite) -> None:
        port = str(free_port())
        (line,) = refusal(site, "--once", PGPORT=port)
        assert line.startswith("can't connect to Postgres: ")
        assert port in line

    def test_a_wrong_password_and_once(self, site: ShapesSite, guarded_role: str) -> None:
        (line,) = refusal(site, "--once", PGUSER=guarded_role, PGPASSWORD="open sesame")
        assert f'password authentication failed for user "{guarded_role}"' in line
        assert "sesame" not in line


def test_a_service_waits_for_postgres_and_then_refuses_every_bad_where(
    site: ShapesSite, guarded_role: str
) -> None:
    """One Spark for all: it starts although Postgres doesn't let us in, and stays for the filters."""
    site.sql("ALTER TABLE orders REPLICA IDENTITY FULL")
    wheres = {
        "unparsed": "status = = 'open'",
        "unknown": "stauts = 'open'",
        "number": "amount + 1",
        "clock": "note > now()",
        "chance": "rand() > 0.5",
        "others": "id IN (SELECT 1)",
        "sum_of": "sum(amount) > 1",
        "named": "id > 1 extra",
    }
    site.write_file(
        *(f'name = "{name}"\ntable = "public.orders"\nwhere = "{where}"' for name, where in wheres.items())
    )
    with site.shapes(PGUSER=guarded_role, PGPASSWORD="open sesame") as process:
        process.wait_for_log("ConnectionFailed", LONG)
        site.sql(f"ALTER ROLE {guarded_role} PASSWORD 'open sesame'")
        assert process.wait(LONG) == 2
        text = process.log_text()
        found = dict(each.split(": where: ", 1) for each in starts_of(site, plain_lines(text)))
    assert "sesame" not in text
    assert list(found) == [f"shape '{name}'" for name in wheres]
    assert [reason.partition(":")[0] for reason in found.values()] == [
        "it can't be parsed",
        "there is no column 'stauts'; did you mean 'status'?",
        "it is not true or false but decimal(11,2)",
        "now changes by itself, and rows would stay where they are",
        "rand gives another result each time",
        "it holds a subquery",
        "it looks at more than one row, or makes several of one",
        "'extra' stands behind the condition and would be a name for it",
    ]

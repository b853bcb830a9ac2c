"""`penstock check --config` as a command: a line for each thing, and for each that is in the way the fix."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psycopg
import pyspark
import pytest

from penstock.local.penstock_process import PenstockProcess
from penstock.local.postgres import PrivatePostgres
from tests.servers.shapes_site import JAVA_OPTIONS, ShapesSite

LONG = 150.0
# Two Javas: Spark's executors are processes of their own, as on a cluster.
CLUSTER = ("--master", "local-cluster[1,1,1024]", "--conf", "spark.driver.host=127.0.0.1")
QUICK = (
    "--conf",
    f"spark.driver.defaultJavaOptions={JAVA_OPTIONS}",
    "--conf",
    f"spark.executor.defaultJavaOptions={JAVA_OPTIONS}",
    "--conf",
    "spark.driver.memory=1g",
)
# "self" is whoever looks: the driver sees the directory that it was started in, executors their own.
UNSHARED = "/proc/self/cwd/log"
TABLES = """
    CREATE TABLE orders (id int PRIMARY KEY, status text);
    ALTER TABLE orders REPLICA IDENTITY FULL;
    CREATE TABLE measures (id int PRIMARY KEY, value float8);
    CREATE TABLE keyless (id int);
    CREATE TABLE secret (id int PRIMARY KEY)
"""
ORDERS = 'name = "orders"\ntable = "public.orders"\nwhere = "status = \'open\'"'
MEASURES = 'name = "measures"\ntable = "public.measures"'
BAD = (
    'name = "unparsed"\ntable = "public.orders"\nwhere = "status = = \'open\'"',
    MEASURES,
    'name = "keyless"\ntable = "public.keyless"',
    'name = "secret"\ntable = "public.secret"',
)
SUBJECTS = [
    *("server", "wal_level", "role", "slot", "leader", "spare slots", "walsenders", "synchronous"),
    *(
        "replication",
        "plugin",
        "options",
        "retention",
        "shapes",
        "storage",
        "log",
        "registry",
        "spark",
        "log",
    ),
]
ASK_FOR_STRINGS = """
    SELECT pg_create_logical_replication_slot('asked', 'wal2json', true);
    SELECT count(*) FROM pg_logical_slot_peek_changes
        ('asked', NULL, NULL, 'format-version', '2', 'numeric-data-types-as-string', 'true')
"""


class Said(NamedTuple):
    """How a check ended."""

    code: int
    text: str
    errors: str


@pytest.fixture
def site(postgres: PrivatePostgres, database: str, tmp_path: Path) -> ShapesSite:
    site = ShapesSite(postgres, database, tmp_path)
    site.sql(TABLES)
    return site


@pytest.fixture
def bad_site(site: ShapesSite) -> ShapesSite:
    site.write_file(*BAD)
    (site.directory / "lake").write_text("a file in the way")
    return site


@pytest.fixture
def role(site: ShapesSite) -> Iterator[str]:
    """A role that may do what a service has to, and not a thing more."""
    role = f"least_{secrets.token_hex(4)}"
    site.sql(f"CREATE ROLE {role} LOGIN REPLICATION; GRANT SELECT ON orders, measures, keyless TO {role}")
    yield role
    site.sql(f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.fixture
def spark_home(tmp_path: Path) -> Path:
    """Executors work below it, so not the one that is installed."""
    home = tmp_path / "spark"
    home.mkdir()
    for name in ("bin", "jars"):
        (home / name).symlink_to(Path(pyspark.__file__).parent / name)
    return home


def check(site: ShapesSite, *args: str, **over: str) -> Said:
    printed = site.directory / "printed"
    env = {**site.postgres.env(site.database), "REPLICATION_SLOT": site.slot, **over}
    command = ("check", "--config", str(site.file), *QUICK, *args)
    with PenstockProcess(command, env, directory=site.directory, output=printed) as process:
        code = process.wait(LONG)
        said = Said(code, printed.read_text(), process.log_text())
    printed.unlink()
    return said


def test_a_good_site(site: ShapesSite, role: str, spark_home: Path) -> None:
    site.write_file(ORDERS)

    said = check(site, *CLUSTER, PGUSER=role, SPARK_HOME=str(spark_home))

    *lines, empty, total = said.text.splitlines()
    assert (said.code, said.errors, empty) == (0, "", "")
    assert total == f"{len(lines)} findings: {len(lines)} ok, 0 warn, 0 fail"
    assert [subject_of(line) for line in lines] == SUBJECTS
    assert all(line.startswith("ok    ") for line in lines)
    lake = site.directory / "lake"
    found = [line[6:].partition("  ")[2].strip() for line in lines]
    assert f"role {role!r}" in found[0]
    assert found[-5:-2] == [
        f"{lake} can be written",
        f"{lake}/_penstock/log can be written",
        "there is none yet: every shape begins with a snapshot",
    ]
    assert found[-2].endswith(" starts with master local-cluster[1,1,1024]")
    assert found[-1] == f"executors see {lake}/_penstock/log"


def test_a_bad_site(bad_site: ShapesSite, role: str, spark_home: Path) -> None:
    """Every mistake at once: none hides another."""
    lake, file = bad_site.directory / "lake", bad_site.file

    said = check(bad_site, "--json", *CLUSTER, PGUSER=role, LOG_DIR=UNSHARED, SPARK_HOME=str(spark_home))

    findings = json.loads(said.text)
    assert (said.code, said.errors) == (1, "")
    assert all(set(each) == {"level", "subject", "found", "fix"} for each in findings)
    failed = [(each["subject"], each["found"], each["fix"]) for each in findings if each["level"] == "fail"]
    assert_starts(
        failed,
        [
            (
                "shapes",
                f"{file}: shape 'keyless': public.keyless has no key: ",
                "ALTER TABLE public.keyless ADD",
            ),
            ("shapes", "the role may not read public.secret: ", "GRANT SELECT ON public.secret TO "),
            ("storage", f"{lake} can't be written: Not a directory", ""),
            ("registry", f"can't read {lake}/_penstock/registry: Not a directory", "move away the file"),
            ("where", f"{file}: shape 'unparsed': where: it can't be parsed: ", "correct it"),
            ("log", f"executors don't see {UNSHARED}/{bad_site.slot}", "set LOG_DIR to a mount that "),
        ],
    )
    warned = [(each["subject"], each["found"], each["fix"]) for each in findings if each["level"] == "warn"]
    if writes_numbers_as_strings(bad_site):
        assert warned == []
    else:
        found = "wal2json before 2.6 writes NaN and infinities as null, in measures.value"
        assert_starts(warned, [("numbers", found, "upgrade wal2json ")])


def test_a_setting_that_spark_may_not_have(bad_site: ShapesSite, role: str) -> None:
    """It is found without a Spark, and so is the rest."""
    said = check(bad_site, "--conf", "spark.sql.session.timeZone=Asia/Tokyo", PGUSER=role)

    *lines, empty, total = said.text.splitlines()
    assert (said.code, said.errors, empty) == (1, "", "")
    failed = [line for line in lines if line.startswith("fail")]
    subjects = ["shapes", "shapes", "storage", "log", "registry", "spark"]
    assert [subject_of(line) for line in failed] == subjects
    assert all(line.count(". Fix: ") == 1 for line in failed)
    assert total.endswith(f" {len(failed)} fail")
    assert failed[-1].endswith(
        "  --conf spark.sql.session.timeZone=Asia/Tokyo: tables are written in UTC. Fix: leave it out"
    )


def assert_starts(found: list[tuple[str, str, str]], starts: list[tuple[str, str, str]]) -> None:
    """Findings in this order, whose subjects, sentences and fixes begin like this; each has a fix."""
    assert [subject for subject, _, _ in found] == [subject for subject, _, _ in starts]
    for (_, sentence, fix), (_, sentence_start, fix_start) in zip(found, starts, strict=True):
        assert sentence.startswith(sentence_start)
        assert fix
        assert fix.startswith(fix_start)


def subject_of(line: str) -> str:
    """What stands between the level and the sentence."""
    return line[6:].partition("  ")[0]


def writes_numbers_as_strings(site: ShapesSite) -> bool:
    """Whether this wal2json is 2.6 or later, and NaN therefore arrives."""
    try:
        site.sql(ASK_FOR_STRINGS)
    except psycopg.errors.InvalidParameterValue:
        return False
    return True

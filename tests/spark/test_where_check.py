from __future__ import annotations

from logging.handlers import BufferingHandler

import pytest
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from pyspark.sql.types import BooleanType

from penstock.decoding.rows import Column
from penstock.lake.jobs.where_check import check_where

COLUMNS = (
    Column("id", "bigint", not_null=True),
    Column("status", "text"),
    Column("amount", "numeric(12,2)"),
    Column("at", "timestamp with time zone"),
    Column("day", "date"),
    Column("is_open", "boolean"),
    Column("a b", "public.money2", base="integer"),
    Column("data", "bytea"),
)
ITSELF = "a row is judged by itself"
CLOCK = "changes by itself, and rows would stay where they are"


@pytest.mark.parametrize(
    "where",
    [
        "id > 1",
        "ID > 1",
        "id > 1 -- and nothing else",
        "id > 1 /* or */",
        "id >\n1",
        "is_open",
        "true",
        "not is_open or status is null",
        "status <> 'closed'",
        "status in ('now', 'today')",
        "status = 'a; DROP TABLE t'",
        "`a b` between 1 and 5",
        "amount > 10.50",
        "at > '2020-01-01' and day >= date'2020-01-01'",
        "to_date('2020-01-01') < day",
        "status like 'a%' or status rlike '^b'",
        "exists(split(status, ','), word -> word = 'b')",
        "date_add(day, 1) > cast(at as date)",
        "coalesce(upper(status), '') = 'X'",
        "unix_timestamp(at) > 5",
    ],
)
def test_a_condition_over_the_row(spark: SparkSession, where: str) -> None:
    assert check_where(spark, COLUMNS, where) is None


@pytest.mark.parametrize(
    ("where", "wrong"),
    [
        ("id >", "it can't be parsed: Syntax error at or near end of input at line 1, pos 4"),
        ("id > 1; DROP TABLE t", "it can't be parsed: Syntax error at or near ';' at line 1, pos 6"),
        ("id > 1) or (true", "it can't be parsed"),
        ("select 1", "it can't be parsed"),
        ("id > 1 limit 3", "it can't be parsed"),
        ("a b > 1", "it can't be parsed"),
        ("id > 1 as x", "'x' stands behind the condition"),
        ("id > 1 or", "'or' stands behind the condition"),
        ("*", "it is not one condition"),
        ("statu = 'x'", "there is no column 'statu'; did you mean 'status'?"),
        ("zzz = 'x'", "there is no column 'zzz'"),
        ("orders.id > 1", "there is no column 'orders.id'"),
        ("_penstock_action = 'delete'", "there is no column '_penstock_action'"),
        ("_metadata.file_name = 'x'", "there is no column '_metadata.file_name'"),
        ("id", "it is not true or false but bigint"),
        ("status", "it is not true or false but string"),
        ("null", "it is not true or false but void"),
        ("(is_open, is_open)", "it is not true or false but struct"),
        ("is_open = 1", "incompatible types"),
        ("id = 'abc'", "cannot be cast"),
        ("day > 'soon'", "cannot be cast"),
        ("nosuch(id)", "`nosuch`"),
        ("substr(status) = 'x'", "`substr` requires"),
        (":x = id", "unbound parameter"),
        ("count(*) > 1", ITSELF),
        ("sum(id) > 1", ITSELF),
        ("row_number() over (order by id) = 1", ITSELF),
        ("explode(array(true, false))", ITSELF),
        ("window(at, '1 day') is not null", ITSELF),
        ("id in (select 1)", f"it holds a subquery: {ITSELF}"),
        ("exists(select 1)", ITSELF),
        ("id > 1 and (select max(1)) > 0", ITSELF),
        ("rand() > 0.5", "rand gives another result each time"),
        ("status = uuid()", "uuid gives another result each time"),
        ("id > 1 or shuffle(array(1, 2)) = array(1, 2)", "shuffle gives another result each time"),
        ("monotonically_increasing_id() > 5", "gives another result each time"),
        ("spark_partition_id() = 0", "gives another result each time"),
        ("input_file_name() = status", "gives another result each time"),
        ("aes_encrypt(status, '0000111122223333') = data", "aes_encrypt gives another result each time"),
        ("at > now()", f"now {CLOCK}"),
        ("at > current_timestamp", f"current_timestamp {CLOCK}"),
        ("day = current_date()", f"current_date {CLOCK}"),
        ("day = curdate()", CLOCK),
        ("localtimestamp() > at", CLOCK),
        ("unix_timestamp() > 5", CLOCK),
        ("current_time() is null", CLOCK),
        ("at > 'now'", CLOCK),
        ("at > 'now UTC'", CLOCK),
        ("at > cast(concat('no', 'w') as timestamp)", CLOCK),
        ("at > timestamp'now'", CLOCK),
        ("day = DATE ' Today'", CLOCK),
        ("day = date_add('yesterday', 1)", CLOCK),
        ("to_timestamp('now') > at", CLOCK),
        ("status = current_user()", "current_user depends on the session"),
        ("status = session_user()", "depends on the session"),
        ("status = version()", "depends on the session"),
        ("status = current_database()", "depends on the session"),
        ("status = current_catalog()", "depends on the session"),
        ("status = current_timezone()", "depends on the session"),
        ("java_method('java.util.UUID', 'randomUUID') = status", "not Spark's own"),
        ("reflect('java.lang.System', 'exit', 3) is null", "not Spark's own"),
        ("try_reflect('java.lang.System', 'nanoTime') = status", "not Spark's own"),
        ("id > 1 or ours(id)", "not Spark's own"),
    ],
)
def test_what_is_refused(spark: SparkSession, where: str, wrong: str) -> None:
    spark.udf.register("ours", lambda value: True, BooleanType())

    found = check_where(spark, COLUMNS, where)

    assert found is not None
    assert wrong in found
    assert "\n" not in found
    assert "SQLSTATE" not in found


def test_pyspark_logs_nothing_about_it(spark: SparkSession) -> None:
    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    logged = BufferingHandler(capacity=100)
    before = list(logger.filters)
    logger.addHandler(logged)
    try:
        check_where(spark, COLUMNS, "nosuch = 1")
    finally:
        logger.removeHandler(logged)

    assert logged.buffer == []
    assert logger.filters == before

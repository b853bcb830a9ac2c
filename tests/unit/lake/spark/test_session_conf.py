"""Spark's settings: ours for a master, and what `--conf` may do to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.lake.errors import ConfRefused, StorageRefused
from penstock.lake.spark.session_conf import check_conf, for_short_work, session_conf, with_theirs

_S3_LOG_STORE = "spark.delta.logStore.s3a.impl"


@pytest.mark.parametrize(("master", "few"), [("local[2]", True), ("local", True), ("spark://h:7077", False)])
def test_few_partitions_are_for_one_machine(master: str, few: bool) -> None:
    conf = session_conf(master, "app", [Path("/x/a.jar"), Path("/x/b.jar")])

    assert ("spark.sql.shuffle.partitions" in conf) == few
    jars = (
        ("spark.driver.extraClassPath", "/x/a.jar:/x/b.jar") if few else ("spark.jars", "/x/a.jar,/x/b.jar")
    )
    assert jars in conf.items()


def test_a_users_setting_goes_over_ours() -> None:
    conf = with_theirs(
        {"spark.driver.memory": "2g", "spark.ui.enabled": "false"}, {"spark.ui.enabled": "true"}
    )

    assert conf == {"spark.driver.memory": "2g", "spark.ui.enabled": "true"}


@pytest.mark.parametrize(
    ("name", "both"),
    [
        ("spark.jars", "ours,theirs"),
        ("spark.driver.extraClassPath", "ours:theirs"),
        ("spark.sql.extensions", "ours,theirs"),
        ("spark.driver.extraJavaOptions", "ours theirs"),
    ],
)
def test_a_list_is_added_to(name: str, both: str) -> None:
    assert with_theirs({name: "ours"}, {name: "theirs"}) == {name: both}
    assert with_theirs({name: "ours"}, {}) == {name: "ours"}


@pytest.mark.parametrize(
    "url", ["./lake", "/data/lake", "file:///data/lake", "hdfs://n/lake", "s3a://lake/x"]
)
def test_without_settings_every_storage_passes(url: str) -> None:
    check_conf(url, {})


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("spark.master", "local", "use --master"),
        ("spark.sql.session.timeZone", "Asia/Tokyo", "UTC"),
        ("spark.sql.ansi.enabled", "false", "become null"),
        ("spark.sql.parquet.outputTimestampType", "INT96", "other readers"),
        ("spark.sql.catalog.spark_catalog", "x.Y", "Delta"),
        ("spark.delta.logStore.class", "x.Y", "syncs"),
        ("spark.delta.logStore.file.impl", "io.delta.storage.LocalLogStore", "syncs"),
    ],
)
def test_what_tables_depend_on_is_not_changed(name: str, value: str, why: str) -> None:
    with pytest.raises(ConfRefused, match=f"^--conf {name}={value}: .*{why}.*Fix: leave it out$"):
        check_conf("./lake", {"spark.ui.enabled": "true", name: value})


def test_s3_needs_a_log_store_for_several_writers() -> None:
    single = {_S3_LOG_STORE: "org.apache.spark.sql.delta.storage.S3SingleDriverLogStore"}
    with pytest.raises(
        StorageRefused, match=r"s3a://lake/x: .* Leave spark\.delta\.logStore\.s3a\.impl unset"
    ):
        check_conf("s3a://lake/x", single)

    check_conf("s3a://lake/x", {_S3_LOG_STORE: "io.delta.storage.S3DynamoDBLogStore"})
    assert session_conf("local", "app", [])[_S3_LOG_STORE] == "penstock.S3LogStore"


def test_a_short_spark_starts_quickly_and_a_user_has_the_last_word() -> None:
    options, partitions = "spark.driver.extraJavaOptions", "spark.sql.shuffle.partitions"
    ours = for_short_work("local[2]", {})
    assert (ours[options], ours[partitions]) == ("-XX:TieredStopAtLevel=1", "1")
    theirs = {options: "-XX:TieredStopAtLevel=4", "spark.driver.memory": "2g", partitions: "8"}
    assert for_short_work("local[2]", theirs) == {
        **ours,
        options: "-XX:TieredStopAtLevel=1 -XX:TieredStopAtLevel=4",
        "spark.driver.memory": "2g",
        partitions: "8",
    }
    assert for_short_work("spark://head:7077", theirs) == theirs

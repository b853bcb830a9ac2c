"""Commits on a file system: whole, never over another one, and only with their data."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyspark
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

import hatch_build
from penstock.lake.delta import shape_table as table_module
from penstock.lake.delta.app_id import AppId
from penstock.lake.delta.shape_table import ShapeTable
from penstock.lake.errors import StorageFailed, TableConflict
from penstock.lake.fold.apply import NetChanges
from penstock.lake.spark.jars import cache_directory, jar_paths
from penstock.lake.spark.log_store import EXPECTED_VERSION, log_store_jar, say_whole_listing
from penstock.lake.spark.spark_session import shape_session
from tests.spark.batches import KEY, Change, contents, net, table_frame
from tests.spark.conftest import Started

ROWS = {1: ("a1", "b1"), 2: ("a2", "b2")}
WRITERS = 8

SOURCES = Path(hatch_build.__file__).parent / "src" / "penstock" / "lake" / "spark" / "java"


class Store:
    """The log store itself, on the log of a table that is nothing but a directory."""

    def __init__(self, spark: SparkSession, table: Path, kind: str = "DurableLogStore") -> None:
        self.log = table / "_delta_log"
        self.log.mkdir(parents=True)
        jvm: Any = spark._jvm
        self._jvm = jvm
        self.conf = jvm.org.apache.hadoop.conf.Configuration()
        self._store = getattr(jvm.penstock, kind)(self.conf)

    def write(self, name: str, *actions: dict[str, Any], overwrite: bool = False) -> None:
        lines = self._jvm.java.util.ArrayList()
        for action in actions:
            lines.add(json.dumps(action, separators=(",", ":")))
        path = self._jvm.org.apache.hadoop.fs.Path(f"file:{self.log / name}")
        self._store.write(path, lines.iterator(), overwrite, self.conf)

    def statuses(self, start: str) -> list[Any]:
        """What a listing has that starts at this name."""
        path = self._jvm.org.apache.hadoop.fs.Path(f"file:{self.log / start}")
        found, statuses = self._store.listFrom(path, self.conf), []
        while found.hasNext():
            statuses.append(found.next())
        return statuses

    def listed(self, start: str) -> list[str]:
        """The names of these files."""
        return [status.getPath().getName() for status in self.statuses(start)]

    def whole_listing(self) -> str:
        """Why a listing was of the whole log."""
        return str(self._jvm.penstock.S3LogStore.wholeListing())

    def files(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in self.log.iterdir()}


@pytest.fixture
def store(started: Started, tmp_path: Path) -> Store:
    return Store(started.spark, tmp_path / "a table")


def refused(kind: str) -> Any:
    return pytest.raises(Py4JJavaError, match=kind)


def test_one_of_many_writers_makes_the_commit(store: Store) -> None:
    for version in range(20):
        name, ready = f"{version:020}.json", threading.Barrier(WRITERS)

        def commit(writer: int, name: str = name, ready: threading.Barrier = ready) -> int | str:
            ready.wait()
            try:
                store.write(name, {"txn": writer})
            except Py4JJavaError as error:
                return str(error.java_exception).partition(":")[0]
            return writer

        with ThreadPoolExecutor(WRITERS) as pool:
            outcomes = list(pool.map(commit, range(WRITERS)))
        assert outcomes.count("java.nio.file.FileAlreadyExistsException") == WRITERS - 1
        assert json.loads(store.files()[name])["txn"] in outcomes
    assert len(store.files()) == 20, "nothing else is left"


def test_a_commit_without_its_data_is_none(store: Store) -> None:
    with refused("NoSuchFileException"):
        store.write("00000000000000000000.json", {"add": {"path": "part-0.parquet"}})
    assert store.files() == {}


@pytest.mark.parametrize(
    "path", ["part%200%25.parquet", "under/part%200%25.parquet", "file:{}/part%200%25.parquet"]
)
def test_data_is_found_by_its_encoded_path(store: Store, path: str) -> None:
    table = store.log.parent
    (table / "under").mkdir()
    for directory in (table, table / "under"):
        (directory / "part 0%.parquet").touch()
    absolute = str(table).replace(" ", "%20")
    store.write("00000000000000000000.json", {"add": {"path": path.format(absolute)}})
    assert len(store.files()) == 1


def test_what_may_be_replaced_is_replaced_whole(store: Store) -> None:
    store.write("_last_checkpoint", {"version": 1}, overwrite=True)
    (store.log / "._last_checkpoint.crc").write_text("of the former file")
    store.write("_last_checkpoint", {"version": 2}, overwrite=True)
    assert store.files() == {"_last_checkpoint": '{"version":2}\n'}


@pytest.mark.parametrize("operation", ["MERGE", "WRITE", "DELETE"])
def test_a_commit_from_another_version_than_expected_is_refused(store: Store, operation: str) -> None:
    store.conf.set(EXPECTED_VERSION, "6")
    for other in ({"readVersion": 7}, {}):
        with refused("penstock: a commit from version"):
            store.write("00000000000000000008.json", {"commitInfo": {"operation": operation, **other}})
    assert store.files() == {}
    store.write("00000000000000000007.json", {"commitInfo": {"operation": operation, "readVersion": 6}})
    store.write("00000000000000000008.json", {"commitInfo": {"operation": "OPTIMIZE", "readVersion": 7}})
    assert len(store.files()) == 2


def test_everything_is_synced_and_the_data_first(started: Started, store: Store, tmp_path: Path) -> None:
    """As Java's own recorder sees it."""
    table = store.log.parent
    (table / "part.parquet").touch()
    (table / ".part.parquet.crc").touch()
    (store.log / "00000000000000000007.checkpoint.parquet").touch()
    jvm: Any = started.spark._jvm
    recording = jvm.jdk.jfr.Recording()
    recording.enable("jdk.FileForce").withoutThreshold()
    recording.start()
    store.write("00000000000000000000.json", {"add": {"path": "part.parquet"}})
    store.write("00000000000000000001.json", {"txn": 1})
    store.write("_last_checkpoint", {"version": 7}, overwrite=True)
    recording.stop()
    dump = jvm.java.io.File(str(tmp_path / "recording.jfr")).toPath()
    recording.dump(dump)
    recording.close()
    events = jvm.jdk.jfr.consumer.RecordingFile.readAllEvents(dump)
    paths = [Path(event.getString("path")).relative_to(tmp_path) for event in events]
    assert [re.sub(r"\.[0-9a-f-]{36}\.", ".*.", str(path)) for path in paths] == [
        "a table/part.parquet",
        "a table/.part.parquet.crc",
        "a table/_delta_log/.00000000000000000000.json.*.tmp",
        "a table",
        "a table/_delta_log",
        "a table",
        ".",
        "a table/_delta_log/.00000000000000000001.json.*.tmp",
        "a table/_delta_log",
        "a table/_delta_log/._last_checkpoint.*.tmp",
        "a table/_delta_log/00000000000000000007.checkpoint.parquet",
        "a table/_delta_log",
    ]


@pytest.fixture
def open_table(started: Started, tmp_path: Path) -> Callable[[], ShapeTable]:
    return lambda: ShapeTable(shape_session(started.spark), str(tmp_path / "table"), AppId("1", "shape", 1))


@pytest.fixture
def table(spark: SparkSession, open_table: Callable[[], ShapeTable]) -> ShapeTable:
    table = open_table()
    table.overwrite_from(table_frame(spark, ROWS), 100, KEY)
    return table


def test_a_writer_frozen_just_before_its_merge_changes_nothing(
    spark: SparkSession,
    table: ShapeTable,
    open_table: Callable[[], ShapeTable],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frozen, merging = open_table(), ShapeTable._merging

    def after_another(self: ShapeTable, changes: NetChanges) -> Any:
        monkeypatch.undo()
        assert table.merge(net(spark, table, Change("insert", 9, "leader", "l")), 250) == 250
        return merging(self, changes)

    mine = net(spark, table, Change("delete", 1))
    monkeypatch.setattr(ShapeTable, "_merging", after_another)
    with pytest.raises(TableConflict, match="somebody else committed just before"):
        frozen.merge(mine, 300)
    assert contents(table.rows()) == ROWS | {9: ("leader", "l")}
    assert frozen.read_state().offset == 250


def test_a_batch_that_was_made_from_an_older_version_is_refused(
    spark: SparkSession, table: ShapeTable
) -> None:
    before = table.read_state()
    mine = net(spark, table, Change("delete", 1))
    table.merge(net(spark, table, Change("delete", 2)), 200)
    with pytest.raises(TableConflict, match="went from version 0 to 1 during a flush"):
        table.merge(mine, 300, made_from=before.version)
    assert table.merge(mine, 200, made_from=before.version) == 200, "what is there already is no conflict"


def test_what_another_has_made_counts_once_its_name_is_on_disk(
    spark: SparkSession,
    table: ShapeTable,
    open_table: Callable[[], ShapeTable],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(table_module, "sync_directory", synced.append)
    successor = open_table()
    directories = [tmp_path / "table" / "_delta_log", tmp_path / "table", tmp_path]
    assert successor.read_state().offset == 100
    assert synced == directories
    assert successor.read_state().offset == 100
    assert synced == directories, "once is enough"
    table.merge(net(spark, table, Change("delete", 1)), 200)
    synced.clear()

    def fail(directory: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(table_module, "sync_directory", fail)
    for _ in range(2):
        with pytest.raises(StorageFailed, match=r"can't sync .*/table: Input/output error"):
            successor.read_state()
    monkeypatch.setattr(table_module, "sync_directory", synced.append)
    assert successor.read_state().offset == 200
    assert synced == directories


def test_what_a_power_cut_leaves_of_a_checksum_does_no_harm(
    started: Started, table: ShapeTable, tmp_path: Path
) -> None:
    """Delta writes it behind the commit, and nobody waits until it is on disk."""
    copy = shutil.copytree(tmp_path / "table", tmp_path / "copy")
    for path in (copy / "_delta_log").glob("*.crc"):
        path.write_bytes(b"")
    after = ShapeTable(shape_session(started.spark), str(copy), AppId("1", "shape", 1))
    assert after.read_state().offset == 100
    assert contents(after.rows()) == ROWS


def test_a_checkpoint_appears_whole(spark: SparkSession, table: ShapeTable, tmp_path: Path) -> None:
    """Delta writes it past the store, and asks that whether to write it under another name first."""
    log, seen = tmp_path / "table" / "_delta_log", set[str]()
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            seen.update(path.name for path in log.iterdir() if "checkpoint" in path.name)

    watcher = threading.Thread(target=watch)
    watcher.start()
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.forTable(table._spark._jsparkSession, table.path).checkpoint()
    done.set()
    watcher.join()
    final = "00000000000000000000.checkpoint.parquet"
    assert (log / final).is_file()
    assert any(name.startswith(f".{final}") and name.endswith(".tmp") for name in seen), seen


def test_the_jar_is_compiled_from_the_sources_that_are_here(tmp_path: Path) -> None:
    """Also: `java_api/` agrees with the jars that Spark runs with, and each build gives the same bytes."""
    real = [*sorted(Path(pyspark.__file__).parent.glob("jars/*.jar")), *jar_paths(cache_directory())]
    classpath = ("-classpath", os.pathsep.join(map(str, real)))
    hatch_build.compile_log_stores(SOURCES, tmp_path / "again.jar", classpath)

    assert (tmp_path / "again.jar").read_bytes() == log_store_jar().read_bytes()


def test_a_listing_looks_only_at_what_it_starts_at(started: Started, store: Store) -> None:
    """Proved by a file that no one can look at: a link to itself."""
    for version in range(5):
        store.write(f"{version:020}.json", {"txn": version})
    (store.log / ".00000000000000000004.crc.crc").touch()
    (store.log / "_last_checkpoint").write_text("{}")
    (store.log / f"{1:020}.crc").symlink_to(f"{1:020}.crc")

    assert store.listed(f"{3:020}.") == [f"{3:020}.json", f"{4:020}.json", "_last_checkpoint"]
    assert store.listed(f"{5:020}.") == ["_last_checkpoint"]
    with refused("FileSystemException"):
        store.listed(f"{0:020}.")
    with refused("FileNotFoundException"):
        store.listed("none/0")


def test_a_listing_has_sizes_times_and_whole_paths(store: Store) -> None:
    store.write(f"{0:020}.json", {"txn": 0})
    (status,) = store.statuses(f"{0:020}.")
    file = store.log / f"{0:020}.json"
    assert status.getLen() == file.stat().st_size
    assert status.getModificationTime() == file.stat().st_mtime_ns // 1_000_000
    assert status.getPath().toUri().toString() == f"file:{file}".replace(" ", "%20")


def test_the_store_for_s3_lists_what_it_can_not_start_at(started: Started, tmp_path: Path) -> None:
    """Without Hadoop's client, or elsewhere than on S3."""
    store = Store(started.spark, tmp_path / "table", "S3LogStore")
    for version in range(3):
        (store.log / f"{version:020}.json").touch()
    assert store.listed(f"{1:020}.") == [f"{1:020}.json", f"{2:020}.json"]
    assert "org/apache/hadoop/fs/s3a/" in store.whole_listing()


def test_that_it_can_not_is_said_once() -> None:
    say_whole_listing.cache_clear()
    with capture_logs() as logs:
        for reason in (None, "no such method", None, "no such method"):
            say_whole_listing(reason)
    (said,) = logs
    assert (said["event"], said["log_level"], said["detail"]) == (
        "whole_log_listed",
        "warning",
        "no such method",
    )

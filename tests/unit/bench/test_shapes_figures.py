"""What `penstock bench shapes` reads off logs, and the frames that it makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from penstock.bench.lag import Visible, Written
from penstock.bench.shapes_many import TableCommits
from penstock.bench.shapes_verify import spark_start, waited
from penstock.bench.spark_wide import COLUMNS, UPDATES, wide_columns, wide_updates
from penstock.decoding.rows import ABSENT
from penstock.lake.jobs.changes import ShapeLayout


def commit(table: Path, version: int, *actions: dict[str, Any]) -> float:
    path = table / "_delta_log" / f"{version:020}.json"
    lines = [{"commitInfo": {"operation": "MERGE"}}, *actions]
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    return path.stat().st_ctime


def txn(app_id: str, version: int) -> dict[str, Any]:
    return {"txn": {"appId": app_id, "version": version, "lastUpdated": 1}}


def test_commits_with_our_offset_are_flushes_and_others_are_not(tmp_path: Path) -> None:
    (tmp_path / "_delta_log").mkdir()
    commits = TableCommits(tmp_path)
    commits.look()
    assert not commits.has(Written("t", 0.0, 100))

    first = commit(tmp_path, 0, txn("penstock:1:t:1", 150))
    commit(tmp_path, 1, txn("penstock-upkeep:1:t", 7))
    commit(tmp_path, 2)
    commits.look()
    second = commit(tmp_path, 3, txn("penstock:1:t:1", 250))
    (tmp_path / "_delta_log" / f"{4:020}.crc").write_text("{}")
    commits.look()

    assert commits.flushes == [Visible(150, first), Visible(250, second)]
    assert commits.has(Written("t", 0.0, 250))
    assert not commits.has(Written("t", 0.0, 251))


def test_the_wait_for_the_service_lasts_until_the_next_step() -> None:
    steps = [
        ("waiting for open transactions", 1.0),
        ("waiting until the tables have", 1.5),
        ("comparing t", 1.75),
    ]

    assert waited(steps) == 0.25
    assert waited(steps[:1]) == 0.0


def test_the_start_of_spark_lasts_until_the_next_step() -> None:
    steps = [
        {"step": "Spark starts", "timestamp": "2026-11-16T10:00:00.250000Z"},
        {"step": "waiting for open transactions", "timestamp": "2026-11-16T10:00:04.750000Z"},
        {"step": "comparing t", "timestamp": "2026-11-16T10:00:05.000000Z"},
    ]

    assert spark_start(steps) == 4.5


def test_wide_updates_are_decoded_with_every_column_or_with_one_absent() -> None:
    columns = wide_columns()
    names = tuple(column.name for column in columns)
    decoder = ShapeLayout("public.wide", columns, ("id",), names, plugin="wal2json").decoder()
    offsets = [(1, 2 * place) for place in range(UPDATES)]

    whole = decoder.decode(offsets, list(wide_updates(columns, 5)))
    lacking = decoder.decode(offsets, list(wide_updates([each for each in columns if each.name != "c2"], 5)))

    assert len(columns) == COLUMNS
    assert whole["id"].to_pylist() == list(range(1, UPDATES + 1))
    assert whole[ABSENT].null_count == UPDATES
    assert lacking[ABSENT].to_pylist() == [["c2"]] * UPDATES
    assert (whole["c1"][0].as_py(), whole["c2"][0].as_py()) == (5, "a text with the number 5")

"""How far a table is, from the files of its log alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from penstock.lake.delta.app_id import AppId
from penstock.lake.delta.log_files import newest_version, read_version
from penstock.lake.errors import StorageFailed
from penstock.lake.ports import Position, TableVersion

APP = AppId("77", "orders", 0)
OURS, OF_OTHERS = "penstock:77:orders:1", "penstock:77:orders_2:1"


class Files:
    """A log in memory."""

    def __init__(self, content: Mapping[str, bytes]) -> None:
        self._content = content

    def names(self) -> list[str]:
        return list(self._content)

    def read(self, name: str) -> bytes | None:
        return self._content.get(name)


def commit(version: int, *transactions: tuple[str, int]) -> dict[str, bytes]:
    actions: list[dict[str, Any]] = [{"commitInfo": {"operation": "MERGE"}}]
    actions += [{"txn": {"appId": name, "version": at}} for name, at in transactions]
    return {f"{version:020d}.json": "\n".join(map(json.dumps, actions)).encode()}


def checksum(version: int, *transactions: tuple[str, int]) -> dict[str, bytes]:
    found = [{"appId": name, "version": at} for name, at in transactions]
    return {f"{version:020d}.crc": json.dumps({"setTransactions": found}).encode()}


@pytest.mark.parametrize(
    ("content", "version"),
    [
        pytest.param({}, TableVersion(-1, None), id="no table"),
        pytest.param(
            commit(0) | commit(1) | checksum(1, (OURS, 500)), TableVersion(1, Position(1, 500)), id="checksum"
        ),
        pytest.param(
            commit(0) | checksum(0, ("penstock:77:orders:2", 300), (OURS, 500)),
            TableVersion(0, Position(2, 300)),
            id="the newest timeline counts, not the highest offset",
        ),
        pytest.param(
            commit(0) | checksum(0, (OF_OTHERS, 900), ("penstock:78:orders:1", 900), ("x", 1)),
            TableVersion(0, None),
            id="others' offsets",
        ),
        pytest.param(
            commit(0, (OURS, 400)) | commit(1, (OURS, 500)) | commit(2) | checksum(1, (OURS, 500)),
            TableVersion(2, Position(1, 500)),
            id="a commit of others without a checksum",
        ),
        pytest.param(
            commit(0, (OURS, 400)) | {f"{0:020d}.crc": b'{"setTra'},
            TableVersion(0, Position(1, 400)),
            id="a checksum that is being written",
        ),
        pytest.param(commit(0) | commit(1), TableVersion(1, None), id="no offset in the whole log"),
    ],
)
def test_versions(content: dict[str, bytes], version: TableVersion) -> None:
    assert newest_version(Files(content), APP, "lake/orders") == version


def test_a_log_that_goes_back_no_further_is_never_no_offset() -> None:
    content = commit(7, (OURS, 400)) | commit(9)
    with pytest.raises(StorageFailed, match="lake/orders: its log has no offset since version 8; only Spark"):
        newest_version(Files(content), APP, "lake/orders")


def test_in_a_directory(tmp_path: Path) -> None:
    assert read_version(str(tmp_path / "t"), APP) == TableVersion(-1, None)
    log = tmp_path / "t" / "_delta_log"
    log.mkdir(parents=True)
    for name, content in (commit(0) | checksum(0, (OURS, 500))).items():
        (log / name).write_bytes(content)
    assert read_version(str(tmp_path / "t"), APP) == TableVersion(0, Position(1, 500))


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "t").touch()
    with pytest.raises(StorageFailed, match=r"can't read .*/t/_delta_log: Not a directory"):
        read_version(str(tmp_path / "t"), APP)

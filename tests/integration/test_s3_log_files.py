"""How far a table in a bucket is, by its own log, on a real S3 protocol."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.lake.delta import log_files
from penstock.lake.delta.app_id import AppId
from penstock.lake.delta.log_files import read_version
from penstock.lake.delta.version_checksums import delete_from_bucket
from penstock.lake.errors import StorageFailed
from penstock.lake.ports import Position, TableVersion
from tests.servers.s3_fixtures import S3Requests

APP_ID = AppId("7", "orders", 0)


def test_how_far_a_table_is(s3: Any, s3_requests: S3Requests) -> None:
    s3.create_bucket(Bucket="lake")

    def put(name: str, content: object) -> None:
        key = f"some where/orders/_delta_log/{name}"
        s3.put_object(Bucket="lake", Key=key, Body=json.dumps(content).encode())

    def read() -> TableVersion:
        return read_version("s3a://lake/some where/orders", APP_ID)

    assert read() == TableVersion(-1, None)
    for version in range(12):
        put(f"{version:020d}.json", {"commitInfo": {}})
    put("_last_checkpoint", {"version": 10})
    with pytest.raises(StorageFailed, match="its log has no offset since version 9; only Spark can tell it"):
        read()
    put(f"{11:020d}.crc", {"setTransactions": [{"appId": "penstock:7:orders:2", "version": 500}]})
    s3_requests.clear()
    assert read() == TableVersion(11, Position(2, 500))
    log = "some where/orders/_delta_log"
    assert [each["start-after"] for each in s3_requests.lists("lake", log)] == [f"{log}/{10:020}"]


def test_a_bucket_that_is_not_there(s3: Any) -> None:
    with pytest.raises(StorageFailed, match=r"can't read s3a://another/orders/_delta_log: .*NoSuchBucket"):
        read_version("s3a://another/orders", APP_ID)


def test_checksums_are_deleted_between_two_versions(
    s3: Any, s3_requests: S3Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many with a request as S3 takes; and no other file."""
    monkeypatch.setattr(log_files, "_MOST_DELETED", 2)
    s3.create_bucket(Bucket="lake")
    names = [f"{each:020d}.{kind}" for each in range(9) for kind in ("crc", "json")]
    names += [f"{8:020d}.checkpoint.parquet", "_last_checkpoint"]
    for name in names:
        s3.put_object(Bucket="lake", Key=f"t/_delta_log/{name}", Body=b"{}")
    s3_requests.clear()

    delete_from_bucket("s3a://lake/t", 3, 8)

    kept = [
        each["Key"].removeprefix("t/_delta_log/") for each in s3.list_objects_v2(Bucket="lake")["Contents"]
    ]
    assert sorted(set(names) - set(kept)) == [f"{each:020d}.crc" for each in range(3, 8)]
    deletes = [each for each in s3_requests.all() if each.method == "POST"]
    assert len(deletes) == 3
    delete_from_bucket("s3a://lake/t", 0, -1)
    assert len(s3.list_objects_v2(Bucket="lake")["Contents"]) == len(kept), "without a checkpoint all stay"


def test_checksums_that_can_not_be_deleted(s3: Any) -> None:
    with pytest.raises(StorageFailed, match=r"can't read s3a://another/t/_delta_log: .*NoSuchBucket"):
        delete_from_bucket("s3a://another/t", 0, 8)

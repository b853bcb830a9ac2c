"""The registry in a bucket, on a real S3 protocol: replaced only by who has seen what it replaces."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ReadTimeoutError

from penstock.shapes.registry.places import S3Registry, open_registry
from penstock.shapes.registry.registry import FileRegistry, Registry, RegistryError

STORAGE = "s3a://lake/some where"
OLD = Registry(system_id="7", timeline=1, slot="shapes", ceiling_lsn=100, shapes={})
NEW = OLD.with_ceiling(200)


@pytest.fixture(autouse=True)
def bucket(s3: Any) -> None:
    s3.create_bucket(Bucket="lake")


def opened() -> S3Registry:
    registry = S3Registry(STORAGE)
    registry.read()
    return registry


def test_a_storage_says_where_its_registry_is(tmp_path: object) -> None:
    assert isinstance(open_registry(STORAGE), S3Registry)
    assert isinstance(open_registry(str(tmp_path)), FileRegistry)


def test_what_was_written_is_read_back() -> None:
    registry = S3Registry(STORAGE)
    assert registry.read() is None
    registry.write(OLD)
    registry.write(NEW)
    assert S3Registry(STORAGE).read() == NEW


@pytest.mark.parametrize("before", [None, OLD])
def test_one_who_woke_up_does_not_write_over_its_successor(before: Registry | None) -> None:
    if before is not None:
        opened().write(before)
    frozen, successor = opened(), opened()
    successor.write(NEW)
    with pytest.raises(RegistryError, match="written by another process"):
        frozen.write(OLD.with_ceiling(2**40))
    assert S3Registry(STORAGE).read() == NEW


@pytest.mark.parametrize("before", [None, OLD])
def test_nor_one_who_is_frozen_between_its_look_and_its_write(before: Registry | None) -> None:
    if before is not None:
        opened().write(before)
    frozen = opened()
    load = frozen._load

    def then_another_writes() -> bytes | None:
        found = load()
        opened().write(NEW)
        return found

    frozen._load = then_another_writes  # type: ignore[method-assign]
    with pytest.raises(RegistryError, match="written by another process"):
        frozen.write(OLD.with_ceiling(2**40))
    assert S3Registry(STORAGE).read() == NEW


def test_a_write_whose_answer_was_lost_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = opened()
    registry.write(OLD)
    put = registry._client.put_object

    def lost(**arguments: object) -> None:
        put(**arguments)
        raise ReadTimeoutError(endpoint_url="s3")

    with monkeypatch.context() as patched:
        patched.setattr(registry._client, "put_object", lost)
        with pytest.raises(RegistryError, match="can't write s3a://lake/some where/_penstock/registry: Read"):
            registry.write(NEW)
    registry.write(NEW.with_ceiling(300))
    assert S3Registry(STORAGE).read() == NEW.with_ceiling(300)


def test_a_bucket_that_is_not_there_is_an_error_and_no_empty_registry() -> None:
    with pytest.raises(
        RegistryError, match=r"can't read s3a://elsewhere/_penstock/registry: NoSuchBucket\. Fix: "
    ):
        S3Registry("s3a://elsewhere").read()


def test_an_unreachable_service_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(RegistryError, match=r"can't read s3a://lake.*Could not connect"):
        S3Registry(STORAGE).read()

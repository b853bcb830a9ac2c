"""Where a registry is kept: in a directory, or in a bucket."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from penstock.lake.storages.kinds import BUCKET, kind_of
from penstock.shapes.registry.registry import FileRegistry, GuardedRegistry, RegistryError, RegistryStore

_CONFIG: Final = Config(connect_timeout=10, read_timeout=10, retries={"mode": "standard"})
_ABSENT: Final = ("NoSuchKey", "404")
_OVERTAKEN: Final = ("PreconditionFailed", "ConditionalRequestConflict")


def open_registry(storage: str) -> RegistryStore:
    """The registry of a storage, as a shapes file names it."""
    return S3Registry(storage) if kind_of(storage) is BUCKET else FileRegistry(Path(storage))


class S3Registry(GuardedRegistry):
    """The object `<storage>/_penstock/registry`. It is replaced only while it is still the one that was seen.

    Credentials, region and endpoint are found as AWS's own tools find them.
    """

    def __init__(self, storage: str) -> None:
        super().__init__(f"{storage}/_penstock/registry")
        bucket, _, key = self._place.removeprefix(f"{BUCKET.scheme}://").partition("/")
        self._object = {"Bucket": bucket, "Key": key}
        self._client = botocore.session.get_session().create_client("s3", config=_CONFIG)
        self._condition: dict[str, str] = {}

    def _load(self) -> bytes | None:
        try:
            found = self._client.get_object(**self._object)
            content: bytes = found["Body"].read()
        except ClientError as error:
            if _code(error) not in _ABSENT:
                raise self._trouble("read", _code(error)) from error
            self._condition = {"IfNoneMatch": "*"}
            return None
        except BotoCoreError as error:
            raise self._trouble("read", str(error)) from error
        self._condition = {"IfMatch": found["ETag"]}
        return content

    def _store(self, content: bytes) -> None:
        try:
            self._client.put_object(**self._object, Body=content, **self._condition)
        except ClientError as error:
            if _code(error) in _OVERTAKEN:
                raise self._overtaken() from None
            raise self._trouble("write", _code(error)) from error
        except BotoCoreError as error:
            raise self._trouble("write", str(error)) from error

    def _trouble(self, what: str, why: str) -> RegistryError:
        return RegistryError(
            f"can't {what} {self._place}: {why}. Fix: let this role get and put objects there, and see that"
            " AWS_REGION and the bucket's name are right"
        )


def _code(error: ClientError) -> str:
    return str(error.response["Error"]["Code"])

"""How far a Delta table is, read from the files of its log: no Spark and no Java.

It is for those who look at a table from outside. What a service builds on is read by Delta itself; of this it
uses only what deletes files from a bucket.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol

import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from penstock.lake.delta.app_id import AppId
from penstock.lake.errors import StorageFailed
from penstock.lake.ports import Position, TableVersion

_COMMIT: Final = re.compile(r"([0-9]{20})\.json")
_LAST_CHECKPOINT: Final = "_last_checkpoint"
_CONFIG: Final = Config(connect_timeout=10, read_timeout=10, retries={"mode": "standard"})
_ABSENT: Final = ("NoSuchKey", "404")
S3: Final = "s3a://"
_MOST_DELETED: Final = 1000


class LogFiles(Protocol):
    """The files of a table's log. Both calls block; StorageFailed if the storage doesn't answer."""

    def names(self) -> Sequence[str]:
        """The names of the newest, those of all commits since the last checkpoint among them."""

    def read(self, name: str) -> bytes | None:
        """A file's content; None if it is gone."""


def read_version(table: str, app_id: AppId) -> TableVersion:
    """The newest version of the table at a path or an `s3a://` URL. Blocks; StorageFailed."""
    files: LogFiles = S3LogFiles(table) if table.startswith(S3) else DirectoryLogFiles(Path(table))
    return newest_version(files, app_id, table)


def newest_version(files: LogFiles, app_id: AppId, table: str) -> TableVersion:
    """The newest version, and the offset that it carries under this name.

    1. Delta writes the offsets of all writers into a small file beside each commit.
    2. Other writers of Delta don't: then the newest commit that has an offset of ours tells, as far back as
       the log goes. Where it goes no further StorageFailed says so; that is never "no offset".
    """
    versions = sorted(int(found[1]) for name in files.names() if (found := _COMMIT.fullmatch(name)))
    if not versions:
        return TableVersion(-1, None)
    newest = versions[-1]
    transactions = _checksum_transactions(files.read(f"{newest:020d}.crc"))
    if transactions is not None:
        return TableVersion(newest, _position(transactions, app_id))
    expected = newest
    while versions and versions[-1] == expected:
        content = files.read(f"{versions.pop():020d}.json")
        if content is None:
            break
        actions = [json.loads(line) for line in content.splitlines() if line]
        position = _position([action["txn"] for action in actions if "txn" in action], app_id)
        if position is not None:
            return TableVersion(newest, position)
        expected -= 1
    if expected < 0:
        return TableVersion(newest, None)
    raise StorageFailed(f"{table}: its log has no offset since version {expected}; only Spark can tell it")


class DirectoryLogFiles:
    """See LogFiles: `_delta_log` of a table in a directory."""

    def __init__(self, table: Path) -> None:
        self._directory = table / "_delta_log"

    def names(self) -> Sequence[str]:
        """See LogFiles."""
        try:
            return os.listdir(self._directory)
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise StorageFailed(f"can't read {self._directory}: {error.strerror or error}") from error

    def read(self, name: str) -> bytes | None:
        """See LogFiles."""
        try:
            return (self._directory / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageFailed(f"can't read {self._directory / name}: {error.strerror or error}") from error


class S3LogFiles:
    """See LogFiles: `_delta_log` of a table in a bucket. Credentials are found as AWS's own tools do it."""

    def __init__(self, table: str) -> None:
        self._place = f"{table}/_delta_log"
        self._bucket, _, key = self._place.removeprefix(S3).partition("/")
        self._prefix = f"{key}/"
        self._client = botocore.session.get_session().create_client("s3", config=_CONFIG)

    def names(self) -> Sequence[str]:
        """See LogFiles."""
        last = self.read(_LAST_CHECKPOINT)
        since = 0 if last is None else int(json.loads(last)["version"])
        return [key.removeprefix(self._prefix) for key in self._keys(since)]

    def _keys(self, since: int) -> Iterator[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=self._prefix, StartAfter=f"{self._prefix}{since:020d}"
        )
        try:
            for page in pages:
                yield from (each["Key"] for each in page.get("Contents", ()))
        except (ClientError, BotoCoreError) as error:
            raise self._trouble(error) from error

    def names_between(self, since: int, below: int) -> Iterator[str]:
        """The names of the files of the versions from `since` to before `below`, as they are listed."""
        end = f"{self._prefix}{below:020d}"
        for key in self._keys(since):
            if key >= end:
                return
            yield key.removeprefix(self._prefix)

    def delete(self, names: Iterable[str]) -> None:
        """Delete these files, as many with one request as S3 takes."""
        left = iter(names)
        while some := list(islice(left, _MOST_DELETED)):
            objects = [{"Key": f"{self._prefix}{name}"} for name in some]
            try:
                done = self._client.delete_objects(
                    Bucket=self._bucket, Delete={"Objects": objects, "Quiet": True}
                )
            except (ClientError, BotoCoreError) as error:
                raise self._trouble(error, "delete from") from error
            for refused in done.get("Errors", ()):
                raise self._trouble(f"{refused.get('Code')}: {refused.get('Message')}", "delete from")

    def read(self, name: str) -> bytes | None:
        """See LogFiles."""
        try:
            found = self._client.get_object(Bucket=self._bucket, Key=f"{self._prefix}{name}")
            content: bytes = found["Body"].read()
        except ClientError as error:
            if error.response["Error"]["Code"] in _ABSENT:
                return None
            raise self._trouble(error) from error
        except BotoCoreError as error:
            raise self._trouble(error) from error
        return content

    def _trouble(self, error: Exception | str, what: str = "read") -> StorageFailed:
        return StorageFailed(f"can't {what} {self._place}: {error}")


def _checksum_transactions(content: bytes | None) -> Sequence[dict[str, Any]] | None:
    """The offsets in a checksum file; None if it has none, or is being written."""
    try:
        found = None if content is None else json.loads(content).get("setTransactions")
    except ValueError:
        return None
    return found if isinstance(found, list) else None


def _position(transactions: Sequence[dict[str, Any]], app_id: AppId) -> Position | None:
    """The one under the newest timeline."""
    found = [app_id.position(each["appId"], each["version"]) for each in transactions]
    return max((position for position in found if position is not None), default=None)

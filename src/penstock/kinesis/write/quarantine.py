"""The quarantine: where a payload that Kinesis can't take is kept, and the record that takes its place."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

import msgspec

from penstock.durable import make_directory, sync_directory
from penstock.errors import PenstockError
from penstock.model.log_offset import LogOffset
from penstock.model.lsn import format_lsn

_PARTIAL = ".partial"


class QuarantineError(PenstockError):
    """A payload could not be stored. The record must block; passing it now would lose it."""


class QuarantineStore(Protocol):
    """Durable storage for undeliverable payloads."""

    def store(self, name: str, payload: bytes) -> str:
        """Store a payload and return its URL. It is durable when this returns.

        Storing the same content under the same name again is fine, because a change comes again after a
        restart. Other content under a name that is taken: QuarantineError. This call blocks; run it in a
        thread.
        """


class FileQuarantine:
    """A directory with one file a payload, readable by its owner only.

    A file gets its name when its content is on disk, so whatever has a name is complete. Until then it is a
    hidden file of this writer's own: a writer that was frozen and wakes up can never rename what another
    one is still writing. What a crash leaves of it is removed when the same name is stored again.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory.absolute()

    def store(self, name: str, payload: bytes) -> str:
        """See QuarantineStore."""
        if not name or name.startswith(".") or "/" in name or "\0" in name:
            raise ValueError(f"not a name for a quarantined payload: {name!r}")
        target = self._directory / name
        try:
            make_directory(self._directory)
            if not _holds(target, payload):
                self._write(target, payload)
            # Also when the file was there: whoever renamed it may have died before this line.
            sync_directory(self._directory)
        except OSError as error:
            raise QuarantineError(f"can't store {target}: {error.strerror or error}") from error
        return target.as_uri()

    def _write(self, target: Path, payload: bytes) -> None:
        prefix = f".{target.name}."
        for leftover in os.listdir(self._directory):
            if leftover.startswith(prefix) and leftover.endswith(_PARTIAL):
                (self._directory / leftover).unlink(missing_ok=True)
        descriptor, partial = tempfile.mkstemp(_PARTIAL, prefix, self._directory)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(payload)
                file.flush()
                os.fsync(file.fileno())
            os.rename(partial, target)
        except BaseException:
            Path(partial).unlink(missing_ok=True)
            raise


def open_quarantine(url: str) -> QuarantineStore:
    """The store that a URL names: `file:///absolute/dir`."""
    path = unquote(url.removeprefix("file://"))
    if not url.startswith("file:///") or not path.strip("/") or set(url) & set("?#") or "\0" in path:
        raise ValueError("must be file:///absolute/dir")
    return FileQuarantine(Path(path))


def object_name(slot: str, offset: LogOffset, payload: bytes) -> str:
    """The name of a quarantined payload; a slot's names sort in the order of its changes.

    The payload's digest is in it: after a failover, or with other WAL2JSON settings, a replay can bring other
    bytes at the same position, and they must not be mistaken for these.
    """
    digest = hashlib.sha256(payload).hexdigest()[:12]
    return f"{slot}-{offset.tx_offset:016x}-{offset.op_offset:016x}-{digest}.wal2json"


def pointer_record(
    *,
    url: str,
    payload: bytes,
    reason: str,
    offset: LogOffset,
    lsn_text: str | None,
    schema: str | None,
    table: str | None,
    action: str | None,
) -> bytes:
    """The small record that stands in the stream for a quarantined one: where it is, never what is in it.

    The same arguments give the same bytes. `reason` must not quote the row.
    """
    quarantined = _Quarantined(url, len(payload), hashlib.sha256(payload).hexdigest(), reason, action)
    position = _Position(format_lsn(offset.tx_offset), offset.op_offset)
    return msgspec.json.encode(_Pointer("Q", quarantined, lsn_text, position, schema, table))


class _Quarantined(msgspec.Struct, frozen=True):
    url: str
    bytes: int
    sha256: str
    reason: str
    action: str | None


class _Position(msgspec.Struct, frozen=True):
    commit_lsn: str
    op_offset: int


class _Pointer(msgspec.Struct, frozen=True):
    """Fields stand in the order in which they are written."""

    action: str
    quarantined: _Quarantined
    lsn: str | None
    position: _Position
    schema: str | None
    table: str | None


def _holds(target: Path, payload: bytes) -> bool:
    """Whether `target` is stored already; QuarantineError if it holds something else."""
    try:
        stored = target.read_bytes()
    except FileNotFoundError:
        return False
    if stored != payload:
        raise QuarantineError(f"can't store {target}: it holds other content")
    return True

"""The quarantine: where a payload that Kinesis can't take is kept."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final, Protocol

from penstock.durable import make_directory, sync_directory, write_whole
from penstock.errors import PenstockError
from penstock.model.log_offset import LogOffset

TOO_LARGE: Final = "too_large"
"""Why a payload is there: no record can hold it."""


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
    """A directory with one file a payload, readable by its owner only, whole or not there (`write_whole`)."""

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
                write_whole(target, payload)
            # Also when the file was there: whoever renamed it may have died before this line.
            sync_directory(self._directory)
        except OSError as error:
            raise QuarantineError(f"can't store {target}: {error.strerror or error}") from error
        return target.as_uri()


def object_name(slot: str, offset: LogOffset, payload: bytes) -> str:
    """The name of a quarantined payload; a slot's names sort in the order of its changes.

    The payload's digest is in it: after a failover, or with other settings of records, a replay can bring
    other bytes at the same position, and they must not be mistaken for these.
    """
    digest = hashlib.sha256(payload).hexdigest()[:12]
    return f"{slot}-{offset.tx_offset:016x}-{offset.op_offset:016x}-{digest}.wal2json"


def _holds(target: Path, payload: bytes) -> bool:
    """Whether `target` is stored already; QuarantineError if it holds something else."""
    try:
        stored = target.read_bytes()
    except FileNotFoundError:
        return False
    if stored != payload:
        raise QuarantineError(f"can't store {target}: it holds other content")
    return True

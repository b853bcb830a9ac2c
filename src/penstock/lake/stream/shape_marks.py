"""ShapeMarks: the manifests of a shape whose storage is a stream. They say how far it is. Blocks."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final

from penstock.kinesis.aws.backoff import full_jitter
from penstock.kinesis.aws.outcome import Failed, Placed, Unsent
from penstock.kinesis.marked.manifest import Manifest, decode, encode, partition_key
from penstock.kinesis.read.client import StreamClient
from penstock.kinesis.read.errors import StreamReadError
from penstock.kinesis.read.manifest_log import ManifestLog
from penstock.kinesis.read.marked_ranges import ShardSpan, read_span
from penstock.kinesis.write.ports import MarkSink
from penstock.lake.errors import StorageFailed, StorageRefused

REST_S: Final = 600.0
"""A shape at rest says again where it is, so that retention doesn't take its last word."""
_PATIENCE_S: Final = 60.0


class ShapeMarks:
    """One shape's manifests: the last that is there, and the next. One call at a time."""

    def __init__(self, stream: StreamClient, shape: str, system: str, sink: MarkSink) -> None:
        """`stream` is the one that manifests go to; the shape's name is the slot of its readers."""
        self._stream = stream
        self._shape = shape
        self._system = system
        self._sink = sink
        self._after: str | None = None
        self._rng = random.Random()  # noqa: S311 - spreads retries, guards nothing

    def last(self, known: int | None) -> Manifest | None:
        """See `last_manifest`."""
        return last_manifest(self._stream, self._shape, self._system, known)

    def put(self, manifest: Manifest, may_send: Callable[[], bool]) -> None:
        """Send a manifest, and read it back; StorageFailed if that can't be done, or may not.

        One whose answer was lost may be there all the same: it says nothing that is not so.
        """
        data = encode(manifest)
        deadline = time.monotonic() + _PATIENCE_S
        attempt = 0
        while not isinstance(
            answer := self._sink.put_mark(data, partition_key(self._shape), self._after, may_send), Placed
        ):
            if isinstance(answer, Unsent):
                raise StorageFailed(f"a manifest of {self._shape} was not sent: nothing shows that we lead")
            if time.monotonic() > deadline or not isinstance(answer, Failed) or answer.stream_fault:
                raise StorageFailed(
                    f"stream {self._stream.stream} takes no manifest of {self._shape}: {answer}"
                )
            time.sleep(full_jitter(attempt, self._rng))
            attempt += 1
        self._after = answer.sequence
        if self._read_back(answer) != manifest:
            raise StorageFailed(f"stream {self._stream.stream} doesn't give back a manifest of {self._shape}")

    def _read_back(self, placed: Placed) -> Manifest:
        number = int(placed.sequence)
        try:
            (record,) = read_span(self._stream, ShardSpan(placed.shard, number, number))
            return decode(record.data)
        except (StreamReadError, ValueError) as error:
            raise StorageFailed(f"a manifest of {self._shape} can't be read back: {error}") from error


def last_manifest(stream: StreamClient, shape: str, system: str, known: int | None = None) -> Manifest | None:
    """The one that reaches furthest; None if there is none. StorageRefused if it is another server's.

    The last one of all may be an older leader's, which slept and woke. So the part before the first that has
    any is read, too: it reaches back by more than the time in which a shape at rest says where it is. And if
    the shape was seen further (`known`, a commit LSN), all are read until one reaches that.
    """
    found: Manifest | None = None
    for part in ManifestLog(stream, shape).backwards():
        before = found
        for _, manifest in part:
            if found is None or manifest.resolved > found.resolved:
                found = manifest
        if before is not None and found is not None and (known or 0) < found.resolved_position.commit_lsn:
            break
    if found is not None and found.system != system:
        raise StorageRefused(
            f"stream {stream.stream} has the shape {shape} of the database system {found.system}, and the"
            f" server is {system}. Fix: connect to the former, or use another stream"
        )
    return found

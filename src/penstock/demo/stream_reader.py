"""A reader of a marked stream in plain Python, by docs/stream.md alone: it knows nothing of the product.

Positions are text that sorts as they do; LSNs in `history` are `16/B374D848`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any, Final

PREFIX_BYTES: Final = 68
"""`{"pos":"` and the position, `","by":"` and the sender, `",`."""

Read = Callable[[str, int, int], Iterable[tuple[int, bytes]]]
"""Records of a shard by sequence number, from the first to the last of these, both included."""


class StreamBroken(Exception):
    """What was applied and what the stream has don't fit together; the sentence says how."""


class StreamReader:
    """Bound to a system and a slot. `applied` is what it has applied, and not merely seen; None at first."""

    def __init__(self, system: str, slot: str, read: Read, applied: str | None = None) -> None:
        self._system, self._slot, self._read = system, slot, read
        self.applied = applied
        self._early: list[dict[str, Any]] = []

    def transactions(self, manifests: Iterable[bytes]) -> Iterator[list[bytes]]:
        """The changes of each transaction, in order, by the manifests of a stream as they stand in it."""
        for data in manifests:
            manifest = json.loads(data)
            if manifest["slot"] != self._slot:
                continue
            if manifest["system"] != self._system:
                raise StreamBroken(f"system {manifest['system']}: not {self._system}")
            self._check_history(manifest)
            self._early.append(manifest)
            for early in sorted(self._early, key=lambda each: str(each["since"])):
                if self.applied is not None and early["since"] > self.applied:
                    break  # it may come before one that was sent earlier
                self._early.remove(early)
                yield from self._apply(early)

    def end(self) -> None:
        """Nothing more comes, or not for long: what is still early lies behind a gap."""
        if self._early:
            first = min(early["since"] for early in self._early)
            raise StreamBroken(f"GAP: applied up to {self.applied}, the next manifest begins at {first}")

    def _check_history(self, manifest: dict[str, Any]) -> None:
        start, resolved = self.applied or manifest["since"], manifest["resolved"]
        left = dict(manifest.get("history", ()))
        timeline, lsn = (int(part, 16) for part in start.split(".")[:2])
        if resolved > start and (
            lsn > _lsn(left[timeline]) if timeline in left else start[:8] != resolved[:8]
        ):
            raise StreamBroken(f"what was applied up to {start} never happened in timeline {resolved[:8]}")

    def _apply(self, manifest: dict[str, Any]) -> Iterator[list[bytes]]:
        since, resolved, start = manifest["since"], manifest["resolved"], self.applied or manifest["since"]
        if resolved <= start:
            self.applied = start
            return
        self._check_history(manifest)
        found: dict[bytes, bytes] = {}
        by, low, high = (manifest[name].encode() for name in ("by", "since", "resolved"))
        for shard, (first, last, _) in manifest["shards"].items():
            records = list(self._read(shard, int(first), int(last)))
            if not records or records[0][0] != int(first):
                if self.applied is None:
                    return  # this one is too old to begin with
                raise StreamBroken(f"{shard} has lost what stood there from {first} on")
            for _, data in records:
                position = data[8:46]
                if data.startswith(b'{"pos":"') and data[54:66] == by and low <= position < high:
                    is_pointer = data[PREFIX_BYTES:].startswith(b'"action":"Q"')
                    found[position] = found.get(position, data) if is_pointer else data
        if len(found) != manifest["changes"]:
            raise StreamBroken(f"{len(found)} changes from {since} to {resolved}, not {manifest['changes']}")
        news = sorted(position for position in found if position >= start.encode())
        for _, same in groupby(news, lambda position: position[:25]):
            yield [b"{" + found[position][PREFIX_BYTES:] for position in same]
        self.applied = resolved


def _lsn(text: str) -> int:
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)

"""The registry: what must be true of a storage before its tables may go on from where they are.

Tables know their own offsets. They can't know whether the slot still begins where they end, whether the
server is still the same, or whether they hold what the shapes file says today. The registry does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
from msgspec.structs import force_setattr, replace

from penstock.durable import make_directory, sync_directory, write_whole
from penstock.errors import PenstockError
from penstock.model.lsn import format_lsn, parse_lsn
from penstock.model.snapshot_again import SnapshotAgain
from penstock.postgres.catalog.table_facts import TableFacts
from penstock.postgres.catalog.table_tree import Tree

VERSION: Final = 1
WRITE_INTERVAL_S: Final = 1.0


class RegistryError(PenstockError):
    """The registry can't be read or written. It is never taken for an empty one: that would be a guess."""


if TYPE_CHECKING:
    Lsn = int
else:

    class Lsn(int):
        """An LSN. The file has it as text, `16/B374D848`; msgspec asks us about a type of our own only."""


class Copy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A snapshot that is being copied into a shape's table."""

    cut_lsn: Lsn
    facts: TableFacts
    """Of the Postgres table, under the snapshot's lock."""

    def __post_init__(self) -> None:
        force_setattr(self, "cut_lsn", Lsn(self.cut_lsn))

    @property
    def tx_offset(self) -> int:
        """What its commit says. No transaction has such a commit LSN: those are even, and so are cuts."""
        return self.cut_lsn - 1


class ShapeEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A shape that its table stands for, or will once its snapshot is taken."""

    definition: str
    """`definition_hash` of the shape."""
    awaits_snapshot: str | None
    """Why its table doesn't count; None once a snapshot of this definition is in the table."""
    facts: TableFacts | None
    """What its Postgres table was when ours was made or last altered; None before its first snapshot."""
    offset: Lsn | None = None
    """What its table was seen to hold when the ceiling was last raised; None if that was not since."""
    copy: Copy | None = None
    """The snapshot that was about to be copied, if nothing has spoken against it since."""
    looked_lsn: Lsn | None = None
    """Up to here, at least, its Postgres table had the partitions that `facts` has."""

    def is_seen_as(self, tree: Tree) -> bool:
        """Whether its Postgres table is known as this one."""
        return self.awaits_snapshot is None and self.facts is not None and self.facts.tree == tree

    def __post_init__(self) -> None:
        for name in ("offset", "looked_lsn"):
            lsn = getattr(self, name)
            if lsn is not None:
                force_setattr(self, name, Lsn(lsn))

    def has_only_moved_since(self, before: ShapeEntry) -> bool:
        """Whether the table is still the one that it was, altered by nobody, however far it has come."""
        return self == replace(before, offset=self.offset, looked_lsn=self.looked_lsn)


class Registry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="version", tag=VERSION):
    """What the file holds. Immutable: each change is a new one, written before what it allows is done.

    This is also the file's description: its members have these names and stand in this order. One without a
    default is in every file.
    """

    system_id: str
    timeline: int
    slot: str
    ceiling_lsn: Lsn
    """The highest LSN ever confirmed: below it, every settled shape's table has everything."""
    shapes: Mapping[str, ShapeEntry]

    def __post_init__(self) -> None:
        force_setattr(self, "ceiling_lsn", Lsn(self.ceiling_lsn))

    def with_ceiling(self, lsn: int, offsets: Mapping[str, int] = MappingProxyType({})) -> Registry:
        """`lsn` is about to be confirmed, or a new slot begins there and every shape awaits a snapshot.

        `offsets` are what the tables hold, by shape.
        """
        shapes = {
            name: entry
            if entry.awaits_snapshot is not None or name not in offsets
            else replace(entry, offset=offsets[name])
            for name, entry in self.shapes.items()
        }
        return replace(self, ceiling_lsn=max(self.ceiling_lsn, lsn), shapes=shapes)

    def awaiting(self, shape: str, reason: str) -> Registry:
        """The shape's table no longer counts: a restart before the new snapshot must not go on from it."""
        return self._with_entry(shape, awaits_snapshot=reason, offset=None, copy=None)

    def all_awaiting(self, again: Iterable[SnapshotAgain]) -> Registry:
        """The same for several shapes at once."""
        registry = self
        for shape, reason in again:
            registry = registry.awaiting(shape, reason)
        return registry

    def copying(self, shape: str, copy: Copy) -> Registry:
        """A shape that awaits a snapshot is about to get this one: after a crash it is known again."""
        awaits = self.shapes[shape].awaits_snapshot is not None
        return self._with_entry(shape, copy=copy) if awaits else self

    def settled(self, shape: str, facts: TableFacts) -> Registry:
        """The shape's snapshot, of a table with these facts, was read back from its table."""
        return self._with_entry(shape, awaits_snapshot=None, facts=facts, copy=None)

    def altered(self, shape: str, facts: TableFacts) -> Registry:
        """The shape's table has followed what was done to the Postgres table."""
        return self._with_entry(shape, facts=facts)

    def looked(self, lsns: Mapping[str, int]) -> Registry:
        """A look has found the shapes' Postgres tables as they are known; the WAL was here before it."""
        shapes = {name: replace(self.shapes[name], looked_lsn=lsn) for name, lsn in lsns.items()}
        return replace(self, shapes={**self.shapes, **shapes})

    def _with_entry(self, shape: str, **changes: Any) -> Registry:
        return replace(self, shapes={**self.shapes, shape: replace(self.shapes[shape], **changes)})


class RegistryStore(Protocol):
    """Where a registry is kept. Both calls block; run them in a thread."""

    def read(self) -> Registry | None:
        """The registry; None only if there has never been one. RegistryError if it can't be read."""

    def write(self, registry: Registry) -> None:
        """Replace it as a whole; durable when this returns. Allowed after a `read`.

        RegistryError if that fails, after which either of the two may be read, or if somebody else has
        written it since: then another process leads, and this one must stop.
        """


class GuardedRegistry(ABC):
    """A RegistryStore that looks before it writes whether it is still what it was."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._expected: set[bytes | None] = set()
        """What may be there if nobody else wrote it; two contents after a write that failed."""

    def read(self) -> Registry | None:
        """See RegistryStore."""
        content = self._load()
        registry = None if content is None else decode(content, self._place)
        self._expected = {content}
        return registry

    def write(self, registry: Registry) -> None:
        """See RegistryStore."""
        if not self._expected:
            raise RuntimeError("a registry is read before it is written")
        if self._load() not in self._expected:
            raise self._overtaken()
        content = encode(registry)
        self._expected.add(content)
        self._store(content)
        self._expected = {content}

    def _overtaken(self) -> RegistryError:
        return RegistryError(
            f"{self._place} was written by another process: it leads now. Fix: if two services share"
            " this storage, give each a storage of its own"
        )

    @abstractmethod
    def _load(self) -> bytes | None:
        """What is there; RegistryError if that can't be told."""

    @abstractmethod
    def _store(self, content: bytes) -> None:
        """Replace what was loaded, as a whole and durably; RegistryError if that fails."""


class FileRegistry(GuardedRegistry):
    """`<storage>/_penstock/registry`, a file that gets its name when its content is on disk."""

    def __init__(self, storage: Path) -> None:
        self._path = storage / "_penstock" / "registry"
        super().__init__(str(self._path))

    def _store(self, content: bytes) -> None:
        try:
            make_directory(self._path.parent, mode=0o777)
            write_whole(self._path, content)
            sync_directory(self._path.parent)
        except OSError as error:
            raise RegistryError(
                f"can't write {self._path}: {error.strerror or error}. Fix: make the storage writable, with"
                " room for a small file; nothing is confirmed until then"
            ) from error

    def _load(self) -> bytes | None:
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            raise RegistryError(
                f"can't read {self._path}: Not a directory. Fix: move away the file that stands in the"
                " place of one, or use another storage"
            ) from None
        except OSError as error:
            raise RegistryError(
                f"can't read {self._path}: {error.strerror or error}. Fix: let this user read it"
            ) from error


class _Versioned(msgspec.Struct, frozen=True):
    version: int


def encode(registry: Registry) -> bytes:
    """The file's content."""
    return msgspec.json.format(_ENCODER.encode(registry)) + b"\n"


def decode(content: bytes, path: str) -> Registry:
    """Read a file's content; RegistryError for anything that `encode` doesn't write."""
    try:
        version = msgspec.json.decode(content, type=_Versioned).version
        if version != VERSION:
            raise ValueError(f"it has version {version}, and this Penstock reads version {VERSION}")
        return _DECODER.decode(content)
    except ValueError as error:
        raise RegistryError(
            f"{path} is not a registry that can be read: {error}. Fix: bring back the file, or move it away,"
            " and every shape is snapshotted again"
        ) from error


def _lsn_to_text(value: object) -> str:
    assert isinstance(value, Lsn), f"a registry has no {type(value).__name__}"
    return format_lsn(value)


def _lsn_from_text(_kind: type, value: str) -> int:
    return Lsn(parse_lsn(value))


_ENCODER: Final = msgspec.json.Encoder(enc_hook=_lsn_to_text, order="deterministic")
_DECODER: Final = msgspec.json.Decoder(Registry, dec_hook=_lsn_from_text)


class Ceiling:
    """Keeps what is confirmed to Postgres at or below what the registry holds, a write a second at most.

    1. `confirmable(frontier)` is what may be reported as flushed: never above the ceiling on disk.
    2. `due(frontier, now)` is the ceiling to write now, or None: the frontier is not above the one on disk,
       a write is under way, or one began less than a second ago.
    3. `written` and `failed` end a write. After a failure nothing more may be confirmed than before.

    The frontier itself is written, and no slack above it: a slot that somebody moved into the slack would
    pass for ours, and its changes would be lost unseen. So a confirmation may wait for a second.
    """

    __slots__ = ("_began_at", "_held_lsn", "_writing_lsn")

    def __init__(self, held_lsn: int) -> None:
        self._held_lsn = held_lsn
        self._writing_lsn: int | None = None
        self._began_at: float | None = None

    def confirmable(self, frontier_lsn: int) -> int:
        """What may be confirmed of a frontier."""
        return min(frontier_lsn, self._held_lsn)

    def due(self, frontier_lsn: int, now: float) -> int | None:
        """The ceiling whose write is to begin now."""
        too_soon = self._began_at is not None and now - self._began_at < WRITE_INTERVAL_S
        if frontier_lsn <= self._held_lsn or self._writing_lsn is not None or too_soon:
            return None
        self._writing_lsn = frontier_lsn
        self._began_at = now
        return frontier_lsn

    def written(self) -> None:
        """The registry holds the ceiling that was due."""
        if self._writing_lsn is None:
            raise RuntimeError("no write of the ceiling is under way")
        self._held_lsn, self._writing_lsn = self._writing_lsn, None

    def failed(self) -> None:
        """The ceiling that was due could not be written."""
        self._writing_lsn = None

"""The proof: what was committed, against what the stream holds. Pure; it knows nothing of the product.

1. Every committed change is in the stream, byte for byte; otherwise it is `missing`.
2. Nothing else is: a record that is no committed change is `invented`. A repeat is a `duplicate`: allowed.
3. All records of a row are in one shard, and their last occurrences stand in commit order; otherwise the row
   is `disordered`.
4. Folding the stream, the last record of each row wins, gives exactly the tables; otherwise a row is
   `differing`.
5. A reader that goes by the stream's manifests restores exactly the transactions that were committed, each
   whole and once, in order; otherwise something is `torn`.
6. The witness's count of committed changes and transactions is the one that the writers kept themselves;
   otherwise something is `unwitnessed`: a witness that misses changes would prove nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

Row = dict[str, str | None]
"""A row's values as Postgres writes them, by column."""


class RowKey(NamedTuple):
    """Which row."""

    table: str
    values: tuple[str | None, ...]

    @classmethod
    def of(cls, table: str, row: Row, key: Sequence[str]) -> RowKey:
        """The key of a row that has at least the key's columns."""
        return cls(table, tuple(row[name] for name in key))

    def __str__(self) -> str:
        return f"{self.table} {', '.join(map(str, self.values))}"


class Record(Protocol):
    """A record of the stream. Records of a shard are given in the shard's order."""

    @property
    def shard_id(self) -> str:
        """Where it was found."""

    @property
    def data(self) -> bytes:
        """The payload."""


class Change(NamedTuple):
    """A committed change, read from its payload."""

    action: str
    key: RowKey
    lsn: str
    row: Row | None
    """The new row; None after a delete."""

    def __str__(self) -> str:
        verb = {"I": "insert into", "U": "update of", "D": "delete from"}[self.action]
        return f"{verb} {self.key} at {self.lsn}"


@dataclass(frozen=True, slots=True)
class Proof:
    """The counts, and each thing that is wrong by its name."""

    transactions: int
    committed: int
    published: int
    duplicate: int
    rows: int
    """In the tables at the end."""
    missing: tuple[str, ...] = ()
    invented: tuple[str, ...] = ()
    disordered: tuple[str, ...] = ()
    differing: tuple[str, ...] = ()
    torn: tuple[str, ...] = ()
    unwitnessed: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether nothing is wrong."""
        return not any(True for _ in self.findings())

    def findings(self) -> Iterator[str]:
        """A line for each thing that is wrong."""
        for kind in ("missing", "invented", "disordered", "differing", "torn", "unwitnessed"):
            for name in getattr(self, kind):
                yield f"{kind}: {name}"


def read_change(payload: bytes, keys: Mapping[str, Sequence[str]]) -> Change:
    """Read a wal2json record (format 2); numbers stay as they were written."""
    frame = json.loads(payload, parse_int=str, parse_float=str)
    row = _values(frame["columns"]) if "columns" in frame else None
    key = _values(frame["identity"]) if row is None else row
    table = frame["table"]
    return Change(frame["action"], RowKey.of(table, key, keys[table]), frame["lsn"], row)


def prove(
    *,
    committed: Sequence[Sequence[bytes]],
    restored: Sequence[Sequence[bytes]],
    stream: Sequence[Record],
    tables: Mapping[RowKey, Row],
    keys: Mapping[str, Sequence[str]],
    claimed_changes: int,
    claimed_transactions: int,
) -> Proof:
    """Compare. `committed` are the witness's transactions, `restored` those of a reader of the stream's
    manifests, `claimed_*` are the writers'.
    """
    payloads = [payload for transaction in committed for payload in transaction]
    changes = {payload: read_change(payload, keys) for payload in payloads}
    wanted, held = Counter(payloads), Counter(record.data for record in stream)
    invented = [record.data for record in stream if record.data not in changes]
    return Proof(
        transactions=len(committed),
        committed=len(payloads),
        published=len(stream),
        duplicate=len(stream) - (wanted & held).total() - len(invented),
        rows=len(tables),
        missing=tuple(str(changes[payload]) for payload in (wanted - held).elements()),
        invented=tuple(_excerpt(payload) for payload in invented),
        disordered=tuple(_disordered(changes, stream)),
        differing=tuple(_differing(fold(changes, stream), tables)),
        torn=tuple(_torn(changes, committed, restored)),
        unwitnessed=tuple(
            _unwitnessed(len(payloads), claimed_changes, "changes")
            + _unwitnessed(len(committed), claimed_transactions, "transactions")
        ),
    )


def fold(changes: Mapping[bytes, Change], stream: Sequence[Record]) -> dict[RowKey, Row]:
    """The tables as a reader makes them who takes the last record of each row."""
    last = {change.key: change.row for record in stream if (change := changes.get(record.data)) is not None}
    return {key: row for key, row in last.items() if row is not None}


def _disordered(changes: Mapping[bytes, Change], stream: Sequence[Record]) -> Iterator[str]:
    shards: dict[RowKey, set[str]] = {}
    for record in stream:
        if record.data in changes:
            shards.setdefault(changes[record.data].key, set()).add(record.shard_id)
    yield from (f"{key} is in several shards" for key, found in shards.items() if len(found) > 1)

    last_place = {record.data: place for place, record in enumerate(stream)}
    newest: dict[RowKey, int] = {}
    for payload, change in changes.items():  # in commit order
        place = last_place.get(payload, -1)
        if 0 <= place < newest.get(change.key, -1):
            yield f"{change} comes before an earlier change of that row"
        newest[change.key] = max(place, newest.get(change.key, -1))


def _differing(folded: Mapping[RowKey, Row], tables: Mapping[RowKey, Row]) -> Iterator[str]:
    for key in tables.keys() - folded.keys():
        yield f"{key} is in the table and not in the stream"
    for key in folded.keys() - tables.keys():
        yield f"{key} is in the stream and not in the table"
    for key in tables.keys() & folded.keys():
        if tables[key] != folded[key]:
            yield f"{key} has other values in the stream than in the table"


def _torn(
    changes: Mapping[bytes, Change],
    committed: Sequence[Sequence[bytes]],
    restored: Sequence[Sequence[bytes]],
) -> Iterator[str]:
    wanted, found = Counter(map(tuple, committed)), Counter(map(tuple, restored))
    for transaction in (wanted - found).elements():
        yield f"the transaction that begins with {changes[transaction[0]]} is not restored whole"
    for transaction in (found - wanted).elements():
        yield f"a transaction of {len(transaction)} changes was restored that was not committed so"
    if wanted == found and list(map(tuple, committed)) != list(map(tuple, restored)):
        yield "transactions are restored in another order than they were committed"


def _unwitnessed(witnessed: int, claimed: int, what: str) -> list[str]:
    if witnessed == claimed:
        return []
    return [f"the writers committed {claimed} {what}, the witness saw {witnessed}"]


def _values(columns: Sequence[Mapping[str, Any]]) -> Row:
    return {column["name"]: column["value"] for column in columns}


def _excerpt(payload: bytes) -> str:
    return payload[:120].decode(errors="replace")

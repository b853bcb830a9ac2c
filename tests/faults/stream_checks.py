"""What must hold of a stream, whatever was broken on the way: nothing missing, nothing invented, in order."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.local.kinesis import LocalKinesis, StoredRecord
from penstock.model.lsn import parse_lsn

_SHOWN = 10


class RowChange(NamedTuple):
    """One change of a row of `Writers`: the writer that commits it and the record of it agree on this."""

    action: str
    """I, U or D."""
    id: int
    version: int
    """Unique for each write of any row, growing in commit order for each row; a delete has its victim's."""


@dataclass(frozen=True)
class Change:
    """One record of the stream, read."""

    order: int
    """Its place in `read_changes`; within a shard, and so within a key, this is the order of arrival."""
    shard: str
    key: str
    """The partition key."""
    data: bytes
    body: dict[str, Any]
    """The payload; empty if it isn't JSON."""

    @property
    def action(self) -> str | None:
        """I, U, D, T; Q for a pointer to a quarantined payload."""
        return self.body.get("action")

    @property
    def table(self) -> str | None:
        """The table, without its schema."""
        return self.body.get("table")

    @property
    def lsn(self) -> int:
        """The change's LSN; with the key, the position of a change in the stream.

        A record that can't be read has it as its key: PARTITION_KEY_FALLBACK is `lsn` in these tests.
        """
        return parse_lsn(self.body.get("lsn") or self.key)

    @property
    def row(self) -> dict[str, Any]:
        """The new row, or of a delete the old one, as far as the record has it."""
        columns = self.body.get("columns") or self.body.get("identity") or []
        return {column["name"]: column["value"] for column in columns}

    @property
    def row_change(self) -> RowChange:
        """Which change this is, if its table is one of `Writers`."""
        return RowChange(str(self.action), self.row["id"], self.row["version"])


def read_changes(kinesis: LocalKinesis, stream: str) -> list[Change]:
    """Everything that the stream holds: shard after shard, in sequence order within each."""
    return [_change(order, record) for order, record in enumerate(kinesis.read_all(stream))]


def assert_nothing_missing(
    changes: Iterable[Change], committed: Collection[RowChange], *, in_doubt: Collection[RowChange] = ()
) -> None:
    """Every committed change is in the stream, and no other; those in doubt may be there or not."""
    published = {change.row_change for change in changes}
    missing = set(committed) - published
    assert not missing, f"{len(missing)} of {len(committed)} changes are missing: {_some(missing)}"
    invented = published - set(committed) - set(in_doubt)
    assert not invented, f"{len(invented)} changes were never committed: {_some(invented)}"


def assert_last_occurrences_in_order(changes: Iterable[Change]) -> None:
    """Of each key, the last occurrences of all records stand in the order of their positions.

    So whoever lets later records overwrite earlier ones ends with the newest.
    """
    for key, records in _by_key(changes).items():
        assert len({record.shard for record in records}) == 1, f"{key} is in several shards"
        last = {record.data: record.order for record in records}
        lsns = [record.lsn for record in records if last[record.data] == record.order]
        assert lsns == sorted(set(lsns)), f"{key}: last occurrences out of order: {lsns}"


def assert_repeats_identical(changes: Iterable[Change]) -> None:
    """Records of one position, and records of one row change, are the same byte for byte."""
    contents: defaultdict[object, set[bytes]] = defaultdict(set)
    for change in changes:
        contents[change.lsn, change.key].add(change.data)
        if "version" in change.row:
            contents[change.row_change].add(change.data)
    differing = [what for what, datas in contents.items() if len(datas) > 1]
    assert not differing, f"not identical: {_some(differing)}"


def count_repeats(changes: Sequence[Change]) -> int:
    """Records beyond the first of each."""
    return len(changes) - len({(change.key, change.data) for change in changes})


def _change(order: int, record: StoredRecord) -> Change:
    try:
        body = json.loads(record.data)
    except ValueError:
        body = {}
    return Change(order, record.shard_id, record.partition_key, record.data, body)


def _by_key(changes: Iterable[Change]) -> dict[str, list[Change]]:
    keys: defaultdict[str, list[Change]] = defaultdict(list)
    for change in changes:
        keys[change.key].append(change)
    return keys


def _some(things: Iterable[object]) -> str:
    return ", ".join(str(thing) for thing in sorted(things, key=str)[:_SHOWN])

"""Manifests that follow each other, as one: what it says is as true, and takes the room of one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from penstock.kinesis.marked.manifest import Manifest, ShardRange, TableMark
from penstock.kinesis.read.chain import Link

_MOST_TABLES: Final = 1_000
_MOST_CHANGES: Final = 100_000


def joined(first: Link, second: Link) -> Link | None:
    """Both as one link; None if that would not be exact.

    Only of one leadership, and without a hole or an overlap: then each position is in one of the two, so
    that numbers add up, and no record of theirs lies outside of both.
    """
    one, two = first.manifest, second.manifest
    if one.by != two.by or two.since != one.resolved or second.start != two.since:
        return None
    whole = replace(
        two,
        since=one.since,
        changes=one.changes + two.changes,
        bytes=one.bytes + two.bytes,
        shards=_shards(one, two),
        tables=_tables(one, two),
    )
    return Link(whole, first.start)


def all_joined(links: Iterable[Link]) -> list[Link]:
    """Links in order, each joined with those before it where that is exact.

    They don't grow large: whoever reads one has the positions of all its changes in mind until it ends.
    """
    found: list[Link] = []
    for link in links:
        whole = joined(found[-1], link) if found else None
        if whole is None or whole.manifest.changes > _MOST_CHANGES:
            found.append(link)
        else:
            found[-1] = whole
    return found


def _shards(one: Manifest, two: Manifest) -> dict[str, ShardRange]:
    shards = dict(one.shards)
    for name, found in two.shards.items():
        shards[name] = found.with_others(shards.get(name))
    return shards


def _tables(one: Manifest, two: Manifest) -> dict[str, TableMark] | str:
    if isinstance(one.tables, str) or isinstance(two.tables, str):
        return "*"
    tables = dict(one.tables)
    for name, found in two.tables.items():
        tables[name] = found.with_others(tables.get(name))
    return tables if len(tables) <= _MOST_TABLES else "*"

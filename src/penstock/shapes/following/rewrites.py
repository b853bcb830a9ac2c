"""What two looks at the catalog prove about a followed table, and what they leave in doubt.

The invariant: a followed table holds what its snapshot had plus what the stream says under its name and the
names of its partitions. The stream tells no DDL, and UNLOGGED tables write nothing to it. These are facts of
the server (`tests/integration/test_shape_catalog.py` holds them against one):

1. An oid is one table for as long as that lives.
2. Whoever renames a table or moves it to another schema writes the row of its row type in pg_type (so does
   who gives it another owner). The same version of that row at two looks: it bore its name all the time, and
   every change under that name was its own. Whoever renames its schema writes that one's row in pg_namespace
   instead (so does who grants rights on it), and the same holds for that.
3. Whoever detaches a partition deletes its row in pg_inherits, and ATTACH makes a new one. The same version
   at two looks: it was a partition all the time, and a TRUNCATE of its parent was one of it.
4. Rows can only be written without WAL into a file that was made for an UNLOGGED table: SET UNLOGGED makes a
   new one, and SET LOGGED another. The same file at two looks: the stream has every change.
5. A rewrite by ALTER TABLE makes a new TOAST table for a table that has one. TRUNCATE, VACUUM FULL, CLUSTER
   and SET TABLESPACE keep it. So a new file with the same TOAST table is explained: of these only TRUNCATE
   changes rows, and the stream has it.

What these don't prove is a Doubt: a new file of a table without TOAST table, which may come from a TRUNCATE
or hide a load; a new partition, which may have got its rows without WAL or under another name. A Doubt is
settled by the rows themselves: those of the server at one position, counted and hashed, are what the stream
says up to there (`streamed_rows.py`), or the table is snapshotted again.

A partition that is gone has left its rows in the lake. If the last look that had it knew its bounds, they are
deleted by these (`departures.py`); else the table is snapshotted again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import NamedTuple

from penstock.model.relation import Relation
from penstock.postgres.catalog.table_tree import Member, Tree
from penstock.shapes.following.departures import Departure, departures


class Doubt(NamedTuple):
    """The stream may not have all rows of a table or partition."""

    table: Relation
    """The followed one."""
    member: Member
    look_lsn: int
    """The look that saw it ended here or before."""
    suspicion: str
    """What happened if the rows are not those of the stream."""
    is_new: bool = False
    """Whether it was no part of the table at the look before: then it began empty."""


class Judgement(NamedTuple):
    """What became of a table between two looks."""

    again: str = ""
    """Why it has to be snapshotted again; then doubts don't matter."""
    doubts: tuple[Doubt, ...] = ()
    departures: tuple[Departure, ...] = ()


def judge(
    before: Tree,
    now: Tree | None,
    look_lsn: int,
    routes: Mapping[Relation, Set[Relation]],
    since_lsn: int = 0,
) -> Judgement:
    """Compare two looks. `routes`: which followed tables a change of a relation counts for.

    `since_lsn`: the table was as it is in `before` when the WAL was here, or later.
    """
    table = before.table.relation
    if now is None:
        return Judgement(
            f"{table} was dropped or renamed. Fix: bring it back, or take the shape out of the file"
        )
    if now.table.oid != before.table.oid:
        return Judgement(f"another table has taken the name {table}")
    members = {member.oid: member for member in (now.table, *now.partitions)}
    doubts, gone = [], []
    for old in (before.table, *before.partitions):
        new = members.pop(old.oid, None)
        if new is None:
            gone.append(old)
            continue
        again = _certain(table, old, new)
        if again is not None:
            return Judgement(again)
        if new.filenode != old.filenode and not new.toast:
            doubts.append(Doubt(table, new, look_lsn, _rewritten(new.relation)))
    for added in members.values():
        if added.attached and table not in routes.get(added.relation, ()):
            return Judgement(f"{added.relation} was attached to {table}, with what it held")
        if added.filenode:
            suspicion = (
                f"{added.relation} is a partition of {table}, and not all of its rows are in the stream"
            )
            doubts.append(Doubt(table, added, look_lsn, suspicion, is_new=True))
    departed = departures(before, now, gone, since_lsn, look_lsn)
    if isinstance(departed, str):
        return Judgement(departed)
    return Judgement("", tuple(doubts), tuple(departed))


def without_toast(tree: Tree) -> Iterator[Relation]:
    """The members of which a TRUNCATE looks like a rewrite."""
    return (each.relation for each in (tree.table, *tree.partitions) if each.filenode and not each.toast)


def _certain(table: Relation, old: Member, new: Member) -> str | None:
    """What surely happened to a member that no change tells, in words."""
    whose = "" if old.relation == table else f", a partition of {table},"
    if new.relation != old.relation:
        return f"{old.relation}{whose} was renamed to {new.relation}"
    if old.placed and new.placed != old.placed:
        return f"{old.relation}{whose} was renamed or detached, and back, or got another owner"
    if new.filenode != old.filenode and (new.layout != old.layout or new.toast != old.toast):
        return _rewritten(new.relation)
    return None


def _rewritten(relation: Relation) -> str:
    return (
        f"{relation} was rewritten (ALTER TABLE, VACUUM FULL, CLUSTER), and may have been UNLOGGED meanwhile"
    )

"""Collector: frames become changes in the log, and commits that say which shapes they touched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import NamedTuple

from penstock.errors import ProtocolViolation
from penstock.model.change import Action, Boundary, Change
from penstock.model.log_offset import BEFORE_ALL, OP_INFINITY, LogOffset
from penstock.model.lsn import format_lsn
from penstock.model.relation import Relation
from penstock.model.snapshot_again import SnapshotAgain
from penstock.postgres.catalog.table_tree import Found, Member, Tree
from penstock.postgres.snapshot.content import Content
from penstock.postgres.stream.walk import FrameWalk
from penstock.shapes.following.departures import Departure, Departures
from penstock.shapes.following.doubts import Doubts
from penstock.shapes.following.followed_tables import FollowedTables
from penstock.shapes.following.rewrites import Doubt, judge, without_toast
from penstock.shapes.following.table_routes import TableRoutes


class Append(NamedTuple):
    """Append this change to the ChangeLog."""

    relation: Relation
    tx_offset: int
    op_offset: int
    payload: bytes


class Committed(NamedTuple):
    """A transaction is complete: for the FlushTracker, and for the ChangeLog if anything was appended."""

    last: LogOffset
    end_lsn: int
    touched: frozenset[str]
    """Empty: nothing of it was appended."""


class Silence(NamedTuple):
    """A keepalive between transactions that brings news: for the FlushTracker."""

    wal_end: int


Step = Append | SnapshotAgain | Committed | Silence


class Collected(NamedTuple):
    """What came of a run of frames."""

    steps: list[Step]
    """To be done in this order."""
    next_frame: int
    """Index of the first frame that was not taken."""
    unknown: Relation | None = None
    """Ask the catalog for this relation and call `learn` before going on."""
    is_truncate: bool = False
    """Whether that is for a TRUNCATE: then `pass_truncates` if the catalog has none of that name now."""


class Collector:
    """Takes frames in the order of the stream and says what is to be done. Knows no socket, disk or clock.

    The problem. Of all changes, shapes need those of their tables, which frames name by their partitions;
    and partitions come, go and are emptied without a change that says so. A transaction that counts as
    untouched is confirmed and never comes again, so that judgement must not be wrong.

    State. The route of each relation: the followed tables that it is or is a partition of; none if no shape
    needs it. The trees of the followed tables as the catalog had them last. What each shape's table holds.
    Of the open transaction: which shapes it touched, and which tables it truncated. What is in doubt.

    Rules.
    1. Every change gets its LogOffset, followed or not: a shape keeps the offsets of the transaction.
    2. A partition has exactly the columns of its root, and its updates and deletes have the root's key, or no
       shape can follow it. A change of a relation without a route that looks like a partition's, and every
       TRUNCATE, stops `take` until `learn` brings the catalog's answer; any other is nobody's. That may
       be wrong (a table renamed and back, one whose root is altered in that moment), which rule 8 finds.
       A TRUNCATE tells no columns, and what it empties may have been copied since the last look. But a
       relation that the catalog doesn't have now is gone, or was never seen by a copy: there is nothing to
       wait for. `pass_truncates` tells so, of the frames that were read before the catalog was asked.
    3. A change is appended, under its own relation, if a shape that follows it still needs the transaction.
       Exactly those shapes are touched.
    4. A change whose relation can't be read is a ProtocolViolation: it might be anybody's. One that names a
       followed relation is appended however unreadable its rest is, and stops only the shapes that read it.
    5. SnapshotAgain means: stop flushing that shape before the next step is done, note it in the registry,
       pin it in the FlushTracker, take the snapshot. Its changes are appended all the while.
    6. TRUNCATE of a partitioned table names it and its partitions in one WAL record. A partition that is
       truncated without it leaves rows that no change deletes: the table's shapes are snapshotted again,
       unless the whole table is truncated later in the transaction.
    7. A change that the server left out is nowhere else: the shapes of its table are snapshotted again.
    8. `check` compares the catalog with what it was, for all that no change tells (`rewrites.judge`). Call it
       often; the snapshot that follows mends what was passed over since.
    9. What `check` can't judge is a Doubt: `settle` it with the server's own rows. Until then the table's
       tree is kept as it was before, so that whoever comes after a crash has the doubt too.
    10. A followed table that is gone has no route. It can be copied only after a look has found one of its
       name: `check` says so, and then has its routes.
    11. Shapes of one table may have been judged up to different looks when a crash came. The first `check`
       compares with all of these; what it finds counts for all shapes of the table.
    12. A relation that was learned as a partition, and that a later look doesn't have, was detached or
       dropped in between: its rows are in the log, and no more in the table.
    13. A partition that is gone, and whose bounds say which rows it had, is a Departure: they are deleted
       from each shape's table for which `may_delete` says so, and then it is `departed`. Until then the
       table's tree is kept as it was before, as in rule 9.

    Repeats. After a restart Postgres sends again from the slot's position. A shape doesn't need a
    transaction that its *table* holds as a whole: the offset was read from the table, of the history that
    the server still has (`registry.decide`), and commit order never changes. That is the only ground for
    skipping. What a former collector saw or logged proves nothing: its log ended with its leadership. When
    no shape needs a transaction, its relations aren't even looked up, and only what is in doubt follows it.

    One collector lives as long as one replication stream and its ChangeLog.
    """

    def __init__(
        self,
        *,
        walk: FrameWalk,
        shapes: Mapping[str, Relation],
        trees: Iterable[Tree],
        held: Mapping[str, LogOffset],
        own_trees: Mapping[str, Tree] = MappingProxyType({}),
        looked: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """`shapes`, `trees`, `own_trees`: see FollowedTables. `held`: see Held, read as a transaction begins.

        Nothing is held of the shapes of a table that is gone. `looked`: of shapes that go on, up to where, at
        least, their tables had the partitions that those trees have.
        """
        self._walk = walk
        self._decoder = walk.decoder
        self._tables = FollowedTables(shapes, trees, own_trees)
        self._trees = dict(self._tables.judged)
        """As the last look had them."""
        self._shapes = tuple(shapes)
        self._held = held
        self._hindmost = next(iter(shapes), "")
        self._held_by_all = BEFORE_ALL
        """A position that every table holds; not always the highest one."""
        self._routes = TableRoutes(walk.decoder)
        self._without_toast: frozenset[Relation] = frozenset()
        self._add_tree_routes()
        self._is_first = True
        """Whether the first check is to come."""
        self._doubts = Doubts(walk.decoder)
        self._departures = Departures()
        self._since = {
            table: min((looked[name] for name in names if name in looked), default=0)
            for table, names in self._tables.followers.items()
        }
        """Up to here, at least, each table had the partitions that its tree has."""
        self._absent: set[Relation] = set()
        """See `pass_truncates`."""
        self._unknown_is_truncate = False
        self._is_needed = False
        self._whole = BEFORE_ALL
        """Where the open transaction ends."""
        self._appended: dict[Relation, bool] = {}
        self._touched: set[str] = set()
        self._last_op = 0
        self._truncated_at: dict[Relation, int] = {}
        self._truncated_part: dict[Relation, Relation] = {}
        self._steps: list[Step] = []
        self._unknown: Relation | None = None
        self._pauses = False
        self.room = 1
        """Part of the walk: 0 where a pause begins."""

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open: reading must not pause here."""
        return self._walk.in_transaction

    def tree_of(self, table: Relation, shape: str) -> Tree:
        """A shape's table as the last check that knew what to think of it had it, or the start.

        That may be kept in the registry: what is not yet judged is found again after a crash.
        """
        return self._tables.tree_of(table, shape)

    def is_gone(self, shape: str) -> bool:
        """Whether the last look, or the start, found no table of the name that the shape follows."""
        return self._tables.is_gone(shape)

    def relations_of(self, table: Relation) -> frozenset[Relation]:
        """The relations under which changes of a followed table are in the log."""
        return self._routes.relations_of(table)

    def followers(self, relation: Relation) -> frozenset[str]:
        """The shapes whose changes are in the log under this relation."""
        return frozenset(self._tables.shapes_of(self._routes.known.get(relation, ())))

    def copy_begins(self, shape: str, cut_lsn: int) -> None:
        """A copy has its cut: what commits before it may never come to the log."""
        self._tables.cuts[shape] = cut_lsn

    def take(self, frames: Sequence[memoryview], start: int, *, pause: bool = False) -> Collected:
        """Take frames from index `start` on, as many as possible; with `pause`, to the transaction's end."""
        self._steps, self._unknown, self._pauses = [], None, pause
        self._unknown_is_truncate = False
        self.room = 0 if pause and not self._walk.in_transaction else 1
        next_frame = self._walk.take(frames, start, self)
        return Collected(self._steps, next_frame, self._unknown, self._unknown_is_truncate)

    def learn(self, relation: Relation, found: Found | None) -> list[SnapshotAgain]:
        """The catalog's answer for the relation that was asked for; None: it has none of that name."""
        tables = self._tables.followers.keys() & {relation, *(found.ancestors if found else ())}
        self._routes.learn(relation, frozenset(tables))
        parents = sorted(tables - {relation})
        if found is None or not parents:
            return []
        self._doubts.follow(relation, self._whole.tx_offset)
        reasons = dict.fromkeys(parents, f"{relation} was attached, with what it held")
        return self._tables.again(reasons if found.attached else {})

    def pass_truncates(self, relation: Relation) -> None:
        """The catalog has none of that name: until `read_more`, its TRUNCATEs have emptied nothing of ours.

        Any other change of it is asked for: its table may be about to be visible.
        """
        self._absent.add(relation)

    def read_more(self) -> None:
        """The next frames may be younger than any answer of the catalog."""
        self._absent.clear()

    def knows(self, relation: Relation) -> bool:
        """Whether `learn` has been told of it, or it needs no telling."""
        return relation in self._routes.known

    def left_out(self, relation: Relation) -> list[SnapshotAgain]:
        """The server says that it left out a change of this relation, which must be known."""
        reason = f"the server left out changes of {relation}, which has no replica identity"
        return self._tables.again(dict.fromkeys(sorted(self._routes.known[relation]), reason))

    @property
    def doubts(self) -> list[Doubt]:
        """What is to be settled."""
        return self._doubts.open

    @property
    def departures(self) -> list[Departure]:
        """The partitions that are gone, and whose rows are to be deleted."""
        return self._departures.open

    @property
    def is_certain(self) -> bool:
        """Whether the catalog was looked at, and nothing is in doubt or to be deleted."""
        return self._doubts.is_certain and not self._departures.open

    def is_hopeless(self, doubt: Doubt) -> bool:
        """Whether the doubt's look was passed, and nothing that the server has could prove it wrong."""
        return self.has_passed(doubt.look_lsn) and self._doubts.is_hopeless(doubt)

    def expected_rows(self, doubt: Doubt) -> int | None:
        """How many rows the stream has of what the doubt is about; None: not known."""
        return self._doubts.expected_rows(doubt)

    def has_passed(self, lsn: int) -> bool:
        """Whether every transaction with a commit LSN below this one was taken."""
        return self._walk.safe_lsn >= lsn

    def check(self, trees: Iterable[Tree], wal_lsn: int, before_lsn: int = 0) -> list[SnapshotAgain]:
        """The followed tables as the catalog has them now, without those that it no longer has.

        `wal_lsn`: where the server's WAL was then, or later; `before_lsn`: what was on disk then, or before.
        """
        now = {tree.table.relation: tree for tree in trees}
        reasons = self._routes.lost(now.values())
        own_trees = self._tables.own_trees.values() if self._is_first else ()
        own = [(tree.table.relation, tree) for tree in own_trees]
        self._is_first = False
        for table, before in (*self._trees.items(), *own):
            judgement = judge(before, now.get(table), wal_lsn, self._routes.known, self._since[table])
            if judgement.again and (table in now or table not in self._tables.gone):
                reasons[table] = judgement.again
            self._doubts.raise_all(judgement.doubts)
            self._departures.add(judgement.departures)
            for departure in judgement.departures:
                is_doubtful = self._doubts.are_open_about(departure.names)
                if table in dict(own) or is_doubtful or not self._may_delete_all(departure):
                    reasons.setdefault(table, departure.reason)
        for table in self._tables.gone & now.keys():
            # Its changes had no route meanwhile, so no snapshot may have begun before.
            reasons.setdefault(table, f"there is a table {table} again")
        self._tables.gone = self._tables.followers.keys() - now.keys()
        self._trees |= {table: tree for table, tree in now.items() if table in self._tables.followers}
        self._since = {table: max(lsn, before_lsn) for table, lsn in self._since.items()}
        again = self._begin_again(reasons)
        self._departures.forget_changes_before(min(self._since.values(), default=0))
        self._doubts.looked(wal_lsn, self._routes.learned)
        return again

    def settle(self, doubt: Doubt, content: Content) -> list[SnapshotAgain]:
        """What the server has of a doubtful member, at a position that was passed."""
        if not self._doubts.are_about(doubt, content):
            # The next look sees what became of it.
            return []
        copies = [self._copied_lsn(shape) for shape in self._tables.followers[doubt.table]]
        copied_lsn = max((lsn for lsn in copies if 0 <= lsn < content.cut_lsn), default=None)
        if not self._doubts.are_proved_wrong(doubt, content, copied_lsn):
            return self.give_up(doubt)
        self._doubts.close(doubt)
        # It may have been truncated once more since the look.
        tree = self._trees[doubt.table]
        self._trees[doubt.table] = tree._replace(
            table=_with_file(tree.table, content),
            partitions=tuple(_with_file(each, content) for each in tree.partitions),
        )
        self._keep_judged()
        return []

    def give_up(self, doubt: Doubt) -> list[SnapshotAgain]:
        """A doubt is confirmed, or can't be settled."""
        if not self._doubts.close(doubt):
            return []
        followers = self._tables.followers[doubt.table]
        if all(self._held_by(shape).tx_offset >= doubt.look_lsn for shape in followers):
            # Snapshots have begun since; what a table held at the start is older than any look.
            self._keep_judged()
            return []
        return self._begin_again({doubt.table: doubt.suspicion})

    def may_delete(self, departure: Departure, shape: str) -> bool:
        """Whether rows within the bounds, in the shape's table as it is, are surely those that went.

        The table must hold all that was taken up to the departure's look, and nothing that is yet to be
        taken. One that was copied since has none of these rows.
        """
        if self.is_copied_since(departure, shape):
            return True
        is_known = self._held_by(shape).tx_offset < departure.since_lsn
        return is_known and self._departures.is_quiet(departure, self._routes.known)

    def _may_delete_all(self, departure: Departure) -> bool:
        return all(self.may_delete(departure, shape) for shape in self._tables.followers[departure.table])

    def is_copied_since(self, departure: Departure, shape: str) -> bool:
        """Whether a snapshot of the shape has begun behind the look that lacked the partition."""
        return self._copied_lsn(shape) >= departure.look_lsn

    def _copied_lsn(self, shape: str) -> int:
        """Up to where the last copy of a shape goes; -1 if none has begun in this leadership."""
        return self._tables.cuts.get(shape, 0) - 1

    def departed(self, departure: Departure) -> list[SnapshotAgain]:
        """No table has the partition's rows any more: its changes are nobody's from here on."""
        if not self._departures.is_left_alone(departure):
            return self.copy_after_all(departure)
        if self._departures.close(departure):
            self._routes.take_away(departure.names, departure.table)
            self._appended.clear()
            self._keep_judged()
        return []

    def copy_after_all(self, departure: Departure) -> list[SnapshotAgain]:
        """Its rows can't be told from others': only a copy is right."""
        if not self._departures.close(departure):
            return []
        return self._begin_again({departure.table: departure.reason})

    def seen_as(self, table: Relation) -> tuple[Tree, int] | None:
        """The table as the last look had it, and an LSN that was before; None if that is not judged yet."""
        if self._is_first or table in self._tables.gone or table in self._unjudged:
            return None
        return self._tables.judged[table], self._since[table]

    @property
    def _unjudged(self) -> Set[Relation]:
        return self._doubts.tables | self._departures.tables

    def _begin_again(self, reasons: Mapping[Relation, str]) -> list[SnapshotAgain]:
        self._departures.drop(reasons.keys())
        self._doubts.drop(reasons.keys())
        self._keep_judged()
        self._routes.forget(reasons.keys())
        self._appended.clear()
        self._add_tree_routes()
        return self._tables.again(reasons)

    def _keep_judged(self) -> None:
        doubtful = self._unjudged
        self._tables.judged |= {table: tree for table, tree in self._trees.items() if table not in doubtful}
        self._tables.own_trees = {
            shape: tree for shape, tree in self._tables.own_trees.items() if tree.table.relation in doubtful
        }

    def change(self, change: Change) -> bool:
        """Part of the walk: place a change; False if its relation is unknown, and then nothing happens."""
        self._last_op = change.op_offset
        if not self._is_needed:
            self._doubts.pass_over(self._decoder.relation(change.payload), change.payload)
            return True
        relation = self._relation(change)
        tables = self._routes.known.get(relation)
        if tables is None:
            is_truncate = change.action is Action.TRUNCATE
            if is_truncate and relation in self._absent:
                self._doubts.take(relation, change.payload)
                return True
            if self._routes.may_be_partition(change):
                self._unknown, self._unknown_is_truncate = relation, is_truncate
                return False
            tables = self._routes.known[relation] = frozenset()
        appended = self._appended.get(relation)
        if appended is None:
            touched = [name for name in self._tables.shapes_of(tables) if self._held_by(name) < self._whole]
            self._touched.update(touched)
            self._appended[relation] = appended = bool(touched)
            if tables:
                self._departures.changed(relation, change.commit_lsn)
        if appended:
            self._steps.append(Append(relation, change.commit_lsn, change.op_offset, change.payload))
            if change.action is Action.TRUNCATE:
                self._truncate(relation, tables, change.wal_start)
        self._doubts.take(relation, change.payload)
        return True

    def _relation(self, change: Change) -> Relation:
        relation = self._decoder.relation(change.payload)
        if relation is None:
            raise ProtocolViolation(
                f"the change at {format_lsn(change.wal_start)} names no table that can be read: it may belong"
                " to a shape, so nothing can pass it"
            )
        return relation

    def _truncate(self, relation: Relation, tables: Iterable[Relation], wal_start: int) -> None:
        if relation in self._without_toast:
            self._doubts.follow(relation, self._whole.tx_offset)
        for table in tables:
            if table == relation:
                self._truncated_at[table] = wal_start
                self._truncated_part.pop(table, None)
            elif self._truncated_at.get(table) != wal_start:
                self._truncated_part[table] = relation

    def begin(self, begin: Boundary) -> None:
        """Part of the walk: a transaction starts."""
        self._whole = LogOffset(begin.commit_lsn, OP_INFINITY)
        self._is_needed = self._needs_whole()
        self._last_op = 0

    def _needs_whole(self) -> bool:
        """Whether some table lacks the open transaction. Looks at one table, and rarely at all of them."""
        if self._whole <= self._held_by_all:
            return False
        if self._shapes and self._held_by(self._hindmost) >= self._whole:
            self._hindmost = min(self._shapes, key=self._held_by)
            self._held_by_all = self._held_by(self._hindmost)
        return bool(self._shapes) and self._held_by(self._hindmost) < self._whole

    def _held_by(self, shape: str) -> LogOffset:
        return self._held.get(shape, BEFORE_ALL)

    def commit(self, commit: Boundary, safe_lsn: int) -> None:
        """Part of the walk: the open transaction is complete."""
        reasons = {
            table: f"{part}, a partition of {table}, was truncated alone"
            for table, part in self._truncated_part.items()
        }
        self._steps += [again for again in self._tables.again(reasons) if again.shape in self._touched]
        last = LogOffset(commit.commit_lsn, self._last_op)
        self._steps.append(Committed(last, safe_lsn, frozenset(self._touched)))
        self._doubts.committed(commit.commit_lsn)
        self._is_needed = False
        self._appended.clear()
        self._touched.clear()
        self._truncated_at.clear()
        self._truncated_part.clear()
        self.room = 0 if self._pauses else 1

    def silence(self, safe_lsn: int) -> None:
        """Part of the walk: nothing is committed up to here."""
        self._steps.append(Silence(safe_lsn))

    def _add_tree_routes(self) -> None:
        self._routes.add(self._trees, self._tables.own_trees.values())
        self._without_toast = frozenset(name for tree in self._trees.values() for name in without_toast(tree))


def _with_file(member: Member, content: Content) -> Member:
    return member._replace(filenode=content.filenode) if member.oid == content.oid else member

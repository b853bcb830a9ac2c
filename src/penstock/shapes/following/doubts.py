"""Doubts: the tables and partitions of which it isn't known whether the stream has all rows."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Final

from penstock.decoding.decoder import Decoder
from penstock.model.relation import Relation
from penstock.postgres.snapshot.content import Content
from penstock.shapes.following.rewrites import Doubt
from penstock.shapes.following.streamed_rows import Digest, StreamedRows

MOST_BYTES: Final = 64 << 20
"""What all relations that are followed may take together."""
_MOST_PASSED: Final = 20_000


class Doubts:
    """What is open, and the rows that the stream has of it. Part of a Collector.

    1. A relation is followed row by row from a moment on at which it was empty: `follow`, when it is
       truncated or learned as a new partition, and `looked`, if a look brings it before its changes.
    2. It is followed as long as it is in doubt, and else until the second look after that moment: what the
       stream has first, a look may have later.
    3. A doubt is proved wrong if the server has exactly the rows that the stream has, at one position.
       Relations that aren't followed prove nothing, nor do those of which nothing is known any more: once
       the stream has passed the look that brought the doubt, nobody has to ask the server (`is_hopeless`).
    4. All rows together take at most MOST_BYTES. Where there are more, the relation that takes most knows
       less from then on.
    5. A transaction that every table holds already (a snapshot's cut lies ahead of the stream; a restart)
       looks up no relation. What it changes of those that are followed is taken like anything else. Any other
       was not empty where it is followed from later: nothing is known of that one.
    6. A copy may hold what the stream doesn't tell. So the stream's rows prove nothing about a table that was
       copied after they were empty: behind the last TRUNCATE, or before a look lacked the new partition. The
       newest look's position doesn't tell that: it may have read the catalog some time before.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._open: dict[tuple[Relation, Relation], Doubt] = {}
        self._streamed: dict[Relation, StreamedRows] = {}
        self._changed: set[Relation] = set()
        """By the open transaction."""
        self._passed: set[Relation] | None = set()
        """Those with changes that were passed over; None: it may be any."""
        self._looked_lsn = 0
        self._looked_before_lsn = 0
        self._kept_bytes = 0

    @property
    def open(self) -> list[Doubt]:
        """Those that are to be settled."""
        return list(self._open.values())

    @property
    def tables(self) -> Set[Relation]:
        """The followed tables that they are about."""
        return {table for table, _ in self._open}

    def are_open_about(self, relations: Set[Relation]) -> bool:
        """Whether one of these is in doubt."""
        return any(relation in relations for _, relation in self._open)

    @property
    def is_certain(self) -> bool:
        """Whether the catalog was looked at, and nothing is in doubt."""
        return self._looked_lsn > 0 and not self._open

    def follow(self, relation: Relation, lsn: int) -> None:
        """The relation is empty in the transaction that commits here, unless changes were passed over."""
        if relation not in self._streamed:
            is_known = self._passed is not None and relation not in self._passed
            self._streamed[relation] = StreamedRows(
                self._decoder, lsn, emptied_lsn=self._looked_before_lsn, is_known=is_known
            )

    def take(self, relation: Relation, payload: bytes) -> None:
        """A change of any relation."""
        if self._streamed and relation in self._streamed:
            rows = self._streamed[relation]
            before = rows.kept_bytes
            rows.take(payload)
            self._kept(rows.kept_bytes - before)
            self._changed.add(relation)

    def pass_over(self, relation: Relation | None, payload: bytes) -> None:
        """A change that every table holds; None: of which relation can't be read."""
        if relation in self._streamed:
            self.take(relation, payload)
        elif relation is None:
            self._passed = None
            for followed, rows in self._streamed.items():
                self._kept_bytes -= rows.kept_bytes
                rows.lose()
                self._kept_bytes += rows.kept_bytes
                self._changed.add(followed)
        elif self._passed is not None:
            self._passed.add(relation)
            if len(self._passed) > _MOST_PASSED:
                self._passed = None

    def committed(self, commit_lsn: int) -> None:
        """The changes taken last are complete."""
        for relation in self._changed & self._streamed.keys():
            rows = self._streamed[relation]
            before = rows.kept_bytes
            rows.committed(commit_lsn)
            self._kept(rows.kept_bytes - before)
        self._changed.clear()

    def raise_all(self, doubts: Iterable[Doubt]) -> None:
        """A look has brought these."""
        self._open |= {(doubt.table, doubt.member.relation): doubt for doubt in doubts}

    def drop(self, tables: Set[Relation]) -> None:
        """These tables begin again."""
        self._open = {key: doubt for key, doubt in self._open.items() if key[0] not in tables}

    def looked(self, wal_lsn: int, learned: Set[Relation]) -> None:
        """A look is over; it or a later one will have the `learned` partitions."""
        doubtful = {relation for _, relation in self._open}
        self._streamed = {
            relation: rows
            for relation, rows in self._streamed.items()
            if relation in doubtful or relation in learned or rows.since_lsn > self._looked_lsn
        }
        self._kept_bytes = sum(rows.kept_bytes for rows in self._streamed.values())
        for doubt in self._open.values():
            if doubt.is_new:
                self.follow(doubt.member.relation, wal_lsn)
        self._looked_before_lsn, self._looked_lsn = self._looked_lsn, wal_lsn

    def are_about(self, doubt: Doubt, content: Content) -> bool:
        """Whether the doubt is still open, and the content that of the table that it is about."""
        return (
            self._open.get((doubt.table, doubt.member.relation)) == doubt and content.oid == doubt.member.oid
        )

    def are_proved_wrong(self, doubt: Doubt, content: Content, copied_lsn: int | None = None) -> bool:
        """Whether the server has the rows that the stream has, and so have the tables of all shapes.

        `copied_lsn`: what one of those holds from a copy that began before the content was taken.
        """
        streamed = self._streamed.get(doubt.member.relation)
        if streamed is None or (copied_lsn is not None and copied_lsn >= streamed.emptied_lsn):
            return False
        return streamed.before(content.cut_lsn) == Digest(content.rows, content.total)

    def is_hopeless(self, doubt: Doubt) -> bool:
        """Whether nothing that the server has could prove it wrong. Ask when its look was passed."""
        return self.expected_rows(doubt) is None

    def expected_rows(self, doubt: Doubt) -> int | None:
        """How many rows the stream has of what the doubt is about; None: not known."""
        streamed = self._streamed.get(doubt.member.relation)
        expected = None if streamed is None else streamed.expected
        return None if expected is None else expected.rows

    def _kept(self, more_bytes: int) -> None:
        self._kept_bytes += more_bytes
        while self._kept_bytes > MOST_BYTES:
            largest = max(self._streamed.values(), key=lambda rows: rows.kept_bytes)
            before = largest.kept_bytes
            largest.shrink()
            self._kept_bytes -= before - largest.kept_bytes

    def close(self, doubt: Doubt) -> bool:
        """It is settled, one way or the other; returns whether it was open."""
        return self._open.pop((doubt.table, doubt.member.relation), None) is not None

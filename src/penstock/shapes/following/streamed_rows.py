"""StreamedRows: what a table holds if it was empty once, and then got what the stream says."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from typing import Final, NamedTuple

from penstock.decoding.decoder import Cells, Decoder, Unreadable

MOST_ROWS: Final = 20_000
"""More are not kept. They are still counted and hashed, as long as rows are only added."""
MOST_COMMITS: Final = 50_000
_COMMIT_BYTES: Final = 250
"""What it costs to know what the table held before a commit."""

_Row = dict[str, str | None]


class Digest(NamedTuple):
    """A table's rows in any order: how many, and the sum of their hashes (`row_hash`)."""

    rows: int = 0
    total: int = 0


class StreamedRows:
    """Takes a relation's changes from a moment on at which it was empty: its creation, or a TRUNCATE.

    1. A row's text is what Postgres prints of its columns, in their order, so that the server can hash it
       too (`ExportedSnapshot.content`).
    2. An update or delete names its row by the primary key. One of a row that isn't there, an insert of one
       that is, a change that can't be read or has no key, more rows than are kept, a change that was missed:
       from there on nothing is known, until a TRUNCATE.
    3. What it held before a position is told for the newest MOST_COMMITS transactions.
    4. `kept_bytes` is about what this costs. Who has too many of these lets one `shrink`: its rows go, and
       after that half of its transactions each time.
    """

    def __init__(
        self, decoder: Decoder, since_lsn: int, *, emptied_lsn: int = 0, is_known: bool = True
    ) -> None:
        """`is_known`: whether all of its changes since that moment are to come."""
        self._decoder = decoder
        self.since_lsn = since_lsn
        """Where it was begun."""
        self.emptied_lsn = emptied_lsn
        """It was empty here or later, and has got since what is taken here."""
        self._was_emptied = False
        self._rows: dict[tuple[str | None, ...], _Row] | None = {} if is_known else None
        self._bytes = 0
        self._digest = Digest() if is_known else None
        self._commits: list[int] = []
        self._digests = [self._digest]
        self._from_lsn = 0

    def take(self, payload: bytes) -> None:
        """A change of the relation."""
        try:
            change = self._decoder.cells(payload)
        except Unreadable:
            self._digest = None
            return
        if change.action == "T":
            self._rows, self._bytes, self._digest = {}, 0, Digest()
            self._was_emptied = True
        elif self._digest is not None:
            self._digest = self._after(self._digest, change)
            self._bytes += len(payload)
            if self._digest is None or (self._rows is not None and len(self._rows) > MOST_ROWS):
                self._rows = None

    def lose(self) -> None:
        """A change may have been missed."""
        self._rows = self._digest = None

    def committed(self, commit_lsn: int) -> None:
        """The transaction of the changes taken last is complete."""
        if self._was_emptied:
            self.emptied_lsn, self._was_emptied = commit_lsn, False
        self._commits.append(commit_lsn)
        self._digests.append(self._digest)
        if len(self._commits) > MOST_COMMITS:
            self._forget_commits()

    @property
    def kept_bytes(self) -> int:
        """About how much memory it takes."""
        return (0 if self._rows is None else self._bytes) + _COMMIT_BYTES * len(self._commits)

    @property
    def expected(self) -> Digest | None:
        """What it holds by all transactions that were taken; None: not known."""
        return self._digests[-1]

    def shrink(self) -> None:
        """Take less memory, at the price of knowing less."""
        if self._rows is not None:
            self._rows = None
        else:
            self._forget_commits()

    def _forget_commits(self) -> None:
        if self._commits:
            half = len(self._commits) // 2 + 1
            self._from_lsn = self._commits[half - 1] + 1
            del self._commits[:half], self._digests[:half]

    def before(self, cut_lsn: int) -> Digest | None:
        """What it held by the transactions with a commit LSN below this one; None: not known."""
        if cut_lsn < self._from_lsn:
            return None
        return self._digests[bisect_left(self._commits, cut_lsn)]

    def _after(self, digest: Digest, change: Cells) -> Digest | None:
        printed = self._decoder.printed
        key = [column.name for column in change.pk]
        new: _Row = {cell.name: printed(cell) for cell in change.columns}
        if change.action == "I":
            if self._rows is not None:
                place = tuple(new.get(name) for name in key)
                if place in self._rows:
                    return None
                if key:
                    self._rows[place] = new
                else:
                    self._rows = None
            return Digest(digest.rows + 1, digest.total + row_hash(list(new.values())))
        old_key = {cell.name: printed(cell) for cell in change.identity}
        if self._rows is None or not key or not old_key.keys() >= set(key):
            return None
        old = self._rows.pop(tuple(old_key[name] for name in key), None)
        if old is None:
            return None
        digest = Digest(digest.rows - 1, digest.total - row_hash(list(old.values())))
        if change.action == "D":
            return digest
        # What an update leaves out is as it was.
        row = {**old, **new}
        place = tuple(row.get(name) for name in key)
        if place in self._rows:
            return None
        self._rows[place] = row
        return Digest(digest.rows + 1, digest.total + row_hash(list(row.values())))


def row_hash(values: list[str | None]) -> int:
    """60 bits of a row, from what Postgres prints of its values."""
    text = "".join("n" if value is None else f"{len(value)}:{value}" for value in values)
    return int(hashlib.sha256(text.encode()).hexdigest()[:15], 16)

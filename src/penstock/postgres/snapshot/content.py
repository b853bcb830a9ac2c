"""Content: a table in a few numbers, to be compared with what the stream says of it."""

from __future__ import annotations

from typing import NamedTuple


class Content(NamedTuple):
    """All rows of a table at a snapshot's cut, in a few numbers."""

    cut_lsn: int
    oid: int
    filenode: int
    rows: int
    total: int
    """The sum of the rows' hashes: 60 bits of what Postgres prints of their columns, in the order of them."""

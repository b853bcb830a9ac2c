"""What the catalog knows of a table's keys now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class KeyIndexes(NamedTuple):
    """The columns of a table's key indexes, in the order of the index; both empty for an unknown table."""

    primary: Sequence[str] = ()
    """Of the primary key."""
    identity: Sequence[str] = ()
    """Of the index that REPLICA IDENTITY USING INDEX names."""

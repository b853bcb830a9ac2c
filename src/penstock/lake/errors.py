"""What can go wrong with a table in the lake, as the service knows it, whatever the storage."""

from __future__ import annotations

from penstock.errors import PenstockError


class TableConflict(PenstockError):
    """Somebody else committed to the table meanwhile. Nothing was changed."""


class ForeignCommit(TableConflict):
    """Somebody else may have changed the table's rows: they are not what our offset says."""


class ChangesUnusable(PenstockError):
    """The log has changes that can't be applied, and nothing in it helps: only a snapshot does."""


class TableAltered(ChangesUnusable):
    """The log has changes of a table with other columns than were said: it was altered since."""


class SparkGone(PenstockError):
    """Spark itself has ended, and can't be had again in this process."""

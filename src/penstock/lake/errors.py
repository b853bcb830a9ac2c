"""What can go wrong with Spark, a storage and its tables. None of it needs Spark to be said or caught."""

from __future__ import annotations

from penstock.errors import PenstockError


class TableConflict(PenstockError):
    """Somebody else committed to the table meanwhile. Nothing was changed."""


class ForeignCommit(TableConflict):
    """Somebody else may have changed the table's rows: they are not what our offset says."""


class ChangesUnusable(PenstockError):
    """The log has changes that can't be applied: only a snapshot helps."""


class TableAltered(ChangesUnusable):
    """The log has changes of a table with other columns than expected: it was altered since."""


class OffsetRefused(PenstockError):
    """The table is already at or past the new offset, or lacks an offset that was written."""


class StorageFailed(PenstockError):
    """A table's storage can't be read or written."""


class StorageRefused(PenstockError):
    """Tables at this storage could lose commits."""


class CannotCompare(PenstockError):
    """A shape can't be compared as things are."""


class JarsMissing(PenstockError):
    """Delta's jars aren't in the cache, and couldn't be downloaded."""


class LogStoreMissing(PenstockError):
    """This installation has no compiled log stores."""


class ConfRefused(PenstockError):
    """A setting of Spark that users can't change."""


class SparkFailed(PenstockError):
    """Spark could not be started."""


class SparkGone(PenstockError):
    """Spark itself has ended, and can't be started again in this process."""


class SparkError(PenstockError):
    """A Spark job failed for a reason that has no error of its own."""

"""Which of Delta's errors mean that another writer was faster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    MetadataChangedException,
    ProtocolChangedException,
)
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from penstock.lake.errors import TableConflict
from penstock.lake.spark.log_store import REFUSED
from penstock.lake.spark.spark_session import plain_errors

_CONFLICTS: Final = (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    MetadataChangedException,
    ProtocolChangedException,
)


@contextmanager
def plain_conflicts(path: str) -> Iterator[None]:
    """As `plain_errors`; TableConflict if somebody else has committed to the table."""
    with plain_errors(path):
        try:
            yield
        except _CONFLICTS as error:
            name = type(error).__name__
            raise TableConflict(f"{path}: somebody else committed meanwhile ({name})") from error
        except (PySparkException, Py4JError) as error:
            if REFUSED in str(error):
                raise TableConflict(f"{path}: somebody else committed just before") from error
            raise

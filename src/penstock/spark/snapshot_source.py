"""The snapshot as a DataFrame: each part of a table is copied and decoded by a Spark task of its own.

`mapInArrow` over a range of numbers, and no DataSource: it was as quick, it needs no extra process to plan,
and it has no options, which plans and Spark's pages would show.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from penstock.errors import ConnectionFailed, LineLost, NoSpareSlot, PenstockError, RoleLacksReplication
from penstock.postgres.snapshot import (
    SnapshotPart,
    SnapshotStale,
    TableUnreadable,
    connect_for_copy,
    copy_part,
)
from penstock.spark.decode import Column, DecodeError, decode_copy
from penstock.spark.names import quote
from penstock.spark.session import saying_errors

_KINDS: Final = {
    kind.__name__: kind
    for kind in (
        ConnectionFailed,
        DecodeError,
        LineLost,
        NoSpareSlot,
        RoleLacksReplication,
        SnapshotStale,
        TableUnreadable,
    )
}
# The last line of a Python traceback, wherever Java's own lines surround it.
_RAISED = re.compile(r"^\s*penstock\.[\w.]+\.(\w+): (.+?)\s*$", re.MULTILINE)
_JAVA_CAUSE = re.compile(r"^Caused by: ([\w.$]+)", re.MULTILINE)


class SnapshotFailed(PenstockError):
    """Spark could not copy a table, for a reason that isn't Postgres' or a value's."""


def snapshot_rows(
    spark: SparkSession,
    relation: str,
    columns: Sequence[Column],
    parts: Sequence[SnapshotPart],
    snapshot_name: str,
) -> DataFrame:
    """The rows in these parts of a table, typed as the lake has them: one Spark partition a part.

    `relation` is the table's name for messages. The tasks connect to Postgres by the variables of their own
    environment (PGHOST, PGPASSWORD, …). Nothing is read before the DataFrame is used, and each use reads
    everything: the snapshot must still be there. `snapshot_error` explains what such a use raises.
    """
    wanted = tuple(columns)
    places = tuple(parts)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with saying_errors():
            for batch in batches:
                for place in batch.column(0).to_pylist():
                    yield from _read_part(relation, wanted, places[place], snapshot_name)

    schema = ", ".join(f"{quote(column.name)} {column.lake.spark}" for column in wanted)
    return spark.range(0, len(places), 1, max(1, len(places))).mapInArrow(read, schema)


def snapshot_error(error: Exception, relation: str) -> PenstockError:
    """What a Spark job over `snapshot_rows` failed of: the error that a task raised, with its sentence.

    Anything else is SnapshotFailed with the names of the errors alone: Spark's texts may show values.
    """
    text = str(error)
    for name, sentence in reversed(_RAISED.findall(text)):
        if name in _KINDS:
            return _KINDS[name](sentence)
    names = [type(error).__name__]
    if isinstance(error, PySparkException) and (condition := error.getCondition()):
        names.append(condition)
    names += _JAVA_CAUSE.findall(text)[-1:]
    return SnapshotFailed(f"Spark did not copy {relation}: {', '.join(names)}")


def _read_part(
    relation: str, columns: Sequence[Column], part: SnapshotPart, snapshot_name: str
) -> Iterator[pa.RecordBatch]:
    names = [column.name for column in columns]
    with closing(connect_for_copy()) as connection:
        for lines in copy_part(connection, snapshot_name, names, part):
            yield decode_copy(relation, columns, lines)

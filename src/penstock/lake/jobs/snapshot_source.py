"""The snapshot as a DataFrame: each part of a table is copied and decoded by a Spark task of its own.

`mapInArrow` over a range of numbers, and no DataSource: it was as quick, it needs no extra process to plan,
and it has no options, which plans and Spark's pages would show.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.decoding.rows import Column, decode_copy
from penstock.lake.spark.names import quote
from penstock.lake.spark.spark_session import saying_errors
from penstock.postgres.snapshot.export import SnapshotPart, connect_for_copy, copy_part


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
    everything: the snapshot must still be there. Use it within `plain_errors`: what a task raises
    comes out as it was.
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


def _read_part(
    relation: str, columns: Sequence[Column], part: SnapshotPart, snapshot_name: str
) -> Iterator[pa.RecordBatch]:
    names = [column.name for column in columns]
    with closing(connect_for_copy()) as connection:
        for lines in copy_part(connection, snapshot_name, names, part):
            yield decode_copy(relation, columns, lines)

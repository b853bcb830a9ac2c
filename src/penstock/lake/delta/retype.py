"""Wider types for a table whose owner doesn't let Delta keep files of the former ones: each is written anew.

1. One commit with the new types, in which every file is removed and what replaces it is added. None of that
   is marked as changed data: readers of the change feed get nothing from it. It has no offset, and leaves the
   one that there is.
2. It doesn't bear our name, as little as Delta's own change of types: it vouches for nothing that others did.
   What it does is proved by its actions (foreign_commits.py).
3. The transaction has read the whole table: whoever commits rows, files or metadata meanwhile makes it fail.
   Then, as after a crash, there are files that no version has, which VACUUM deletes.
4. A file becomes a file, or several, with its rows in their order: keys lie as they did, nothing is shuffled,
   and a task holds no more than the writer of a file does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from penstock.lake.delta.delta_log import delta_log_of, metadata_of, protocol_of
from penstock.lake.delta.rearrange import action_from, replacing, seq
from penstock.lake.delta.rewritable import is_rewritable, retyped
from penstock.lake.errors import TableConflict
from penstock.lake.spark.names import column_of
from penstock.lake.spark.session_settings import with_settings

# Who opens a file pays as much as for reading a partition: no two files are in one, and large ones are split.
_FILE_BY_FILE: Final = {
    "spark.sql.files.maxPartitionBytes": str(128 << 20),
    "spark.sql.files.openCostInBytes": str(128 << 20),
}


def retype(spark: SparkSession, path: str, types: Mapping[str, str], made_from: int) -> int:
    """Give columns types that hold all their values; how many files were rewritten. Blocks.

    TableConflict, or Delta's own conflict, if the table has moved on from the version `made_from`, or isn't
    one that can be rewritten.
    """
    jvm: Any = spark._jvm
    log = delta_log_of(spark, path)
    transaction = log.startTransaction()
    snapshot = transaction.snapshot()
    metadata = metadata_of(snapshot)
    # Whoever asked whether it can be rewritten may have seen an older version than this one.
    is_known = is_rewritable(protocol_of(snapshot), metadata)
    if int(snapshot.version()) != made_from or not is_known:
        raise TableConflict(f"{path} is not what version {made_from} was: somebody else committed meanwhile")
    files = transaction.filterFiles()
    nothing = getattr(log, "createDataFrame$default$4")()
    rows = DataFrame(log.createDataFrame(snapshot, files, False, nothing), spark)
    wider = rows.select(
        *[
            column_of(name).cast(types[name]).alias(name) if name in types else column_of(name)
            for name in rows.columns
        ]
    )
    transaction.updateMetadata(action_from(jvm, {"metaData": retyped(metadata, types)}), False)
    written = seq(jvm, [])
    if files.size():
        with with_settings(spark, _FILE_BY_FILE):
            written = transaction.writeFiles(wider._jdf, nothing, True, written)
    operations = jvm.org.apache.spark.sql.delta.DeltaOperations
    schema = transaction.metadata().schema()
    changes = [operations.ChangeColumn(seq(jvm, []), name, schema.apply(name), nothing) for name in types]
    transaction.commit(seq(jvm, replacing(jvm, files, written)), operations.ChangeColumns(seq(jvm, changes)))
    return int(files.size())

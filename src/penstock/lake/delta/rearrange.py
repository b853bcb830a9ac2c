"""Upkeep of data files: too large ones are split, small ones put together, and keys kept close together.

A flush rewrites each file that holds one of its keys, and reads each that may. So a file has some ten
thousand rows, and a key is in the range of few files. Delta's OPTIMIZE merges files in the order of their
sizes and never splits one. This rewrites those that need it, sorted by key, in a commit that changes no data.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from penstock.lake.delta.data_files import DataFile
from penstock.lake.delta.delta_log import delta_log_of
from penstock.lake.spark.names import column_of

FILE_ROWS: Final = 35_000
_MOST_FILES: Final = 4000
_LARGEST_FILE: Final = 32 << 20
_DEEPEST: Final = 3
"""In the range of how many files a key may be."""
_AT_ONCE_BYTES: Final = 512 << 20
"""What one upkeep rewrites: the shape's flushes wait for it."""


def rows_a_file(files: Sequence[DataFile]) -> int:
    """How many rows a file of such a table should have."""
    rows = sum(file.rows or 0 for file in files)
    size = sum(file.size for file in files if file.rows)
    fitting = _LARGEST_FILE * rows // size if size and rows else FILE_ROWS
    return max(1, min(max(FILE_ROWS, rows // _MOST_FILES), fitting))


def ill(files: Sequence[DataFile], column: str, wanted: int) -> list[DataFile]:
    """The files to rewrite, so that each has about `wanted` rows and few hold a value of `column`."""
    small = [file for file in files if file.rows is not None and 2 * file.rows < wanted]
    chosen = {file.path for file in small} if len(small) > 1 else set()
    chosen |= {file.path for file in files if file.rows is not None and file.rows > 2 * wanted}
    chosen |= {file.path for file in _deep(files, column)}
    first = [file for file in files if file.path in chosen]
    # Neighbours together, where all is too much.
    first.sort(key=lambda file: (column in file.bounds, *file.bounds.get(column, ())))
    taken: list[DataFile] = []
    size = 0
    for file in first:
        size += file.size
        if taken and size > _AT_ONCE_BYTES:
            break
        taken.append(file)
    return taken


def _deep(files: Sequence[DataFile], column: str) -> list[DataFile]:
    """Those in whose range there is a value that is in the ranges of too many.

    Files of one value only can't lie any better: the next key column tells their rows apart.
    """
    bounded = [file for file in files if column in file.bounds]
    ranged = [file for file in bounded if file.bounds[column][0] != file.bounds[column][1]]
    known = sorted(ranged, key=lambda file: file.bounds[column])
    found: dict[str, DataFile] = {}
    open_now: list[DataFile] = []
    for file in known:
        low = file.bounds[column][0]
        open_now = [other for other in open_now if other.bounds[column][1] >= low]
        open_now.append(file)
        if len(open_now) > _DEEPEST:
            found |= {other.path: other for other in open_now}
    return list(found.values())


def rewrite(
    spark: SparkSession, path: str, chosen: Sequence[DataFile], key: Sequence[str], wanted: int
) -> None:
    """Rewrite the rows of these files, sorted by key. The commit changes no data. Blocks.

    A file that somebody else has replaced meanwhile makes it fail with Delta's own conflict.
    """
    jvm: Any = spark._jvm
    log = delta_log_of(spark, path)
    transaction = log.startTransaction()
    nothing = getattr(log, "createDataFrame$default$4")()
    snapshot = transaction.snapshot()
    files = snapshot.getSpecificFilesWithStats(seq(jvm, [file.path for file in chosen]))
    if files.size() != len(chosen):
        return
    rows = DataFrame(log.createDataFrame(snapshot, files, False, nothing), spark)
    count = max(1, math.ceil(sum(file.rows or wanted for file in chosen) / wanted))
    keys = [column_of(name) for name in key]
    ordered = rows.coalesce(1) if count == 1 else rows.repartitionByRange(count, *keys)
    ordered = ordered.sortWithinPartitions(*keys)
    written = transaction.writeFiles(ordered._jdf, nothing, True, seq(jvm, []))
    optimize = jvm.org.apache.spark.sql.delta.DeltaOperations.Optimize
    operation = optimize(seq(jvm, []), seq(jvm, list(key)), False, nothing, False)
    transaction.commit(seq(jvm, replacing(jvm, files, written)), operation)


def note_transaction(spark: SparkSession, path: str, name: str) -> int:
    """Commit nothing but a transaction under this name; its version, in both senses, is returned. Blocks."""
    jvm: Any = spark._jvm
    transaction = delta_log_of(spark, path).startTransaction()
    version = int(transaction.snapshot().version()) + 1
    note = {"txn": {"appId": name, "version": version, "lastUpdated": int(time.time() * 1000)}}
    operations = getattr(jvm.org.apache.spark.sql.delta, "DeltaOperations$ManualUpdate$")
    transaction.commit(seq(jvm, [action_from(jvm, note)]), getattr(operations, "MODULE$"))
    return version


def replacing(jvm: Any, files: Any, written: Any) -> list[Any]:
    """The actions that put files in the place of others and bring nothing new."""
    now_ms = int(time.time() * 1000)
    actions = [files.apply(place).removeWithTimestamp(now_ms, False) for place in range(files.size())]
    for place in range(written.size()):
        content = json.loads(written.apply(place).json())
        content["add"]["dataChange"] = False
        actions.append(action_from(jvm, content))
    return actions


def action_from(jvm: Any, content: Mapping[str, Any]) -> Any:
    """An action of Delta's log, as Delta has it."""
    return jvm.org.apache.spark.sql.delta.actions.Action.fromJson(json.dumps(content))


def seq(jvm: Any, items: Sequence[Any]) -> Any:
    """A list, as Scala has it."""
    return jvm.PythonUtils.toSeq(list(items))

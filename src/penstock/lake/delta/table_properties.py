"""A table's properties: ours by its columns, and what others have set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from pyspark.sql.types import NumericType, StringType, StructType

from penstock.lake.spark.names import quote

PROPERTIES: Final = MappingProxyType(
    {
        "delta.enableDeletionVectors": "false",
        # A column of this type can't be added later otherwise. `deltalake` reads it.
        "delta.feature.timestampNtz": "supported",
        "delta.checkpointInterval": "100",
        "delta.logRetentionDuration": "interval 1 days",
        # Upkeep does it. Delta would list the whole log for it, in the flush that makes a checkpoint.
        "delta.enableExpiredLogCleanup": "false",
        "delta.deletedFileRetentionDuration": "interval 1 days",
    }
)
CONSTRAINT: Final = "delta.constraints."
_STATISTICS: Final = 16
# By the columns: ours follow them. The rest Delta numbers by itself.
_NOT_KEPT: Final = (
    "delta.dataSkippingStatsColumns",
    "delta.dataSkippingNumIndexedCols",
    "delta.columnMapping.maxColumnId",
    "delta.rowTracking.materialized",
)


def properties(schema: StructType, key: Sequence[str]) -> dict[str, str]:
    """A table's properties, by its columns."""
    kinds = (NumericType, StringType)
    kept = [field.name for field in schema.fields if isinstance(field.dataType, kinds)]
    ordered = [name for name in key if name in kept] + [name for name in kept if name not in key]
    if not ordered:
        return {**PROPERTIES, "delta.dataSkippingNumIndexedCols": "0"}
    names = ",".join(map(quote, ordered[:_STATISTICS]))
    return {**PROPERTIES, "delta.dataSkippingStatsColumns": names}


def kept_properties(now: Mapping[str, str]) -> dict[str, str]:
    """Those of a table's properties that stay when its rows and columns are replaced."""
    return {name: value for name, value in now.items() if not name.startswith(_NOT_KEPT)}

"""The data source `penstock`: a log directory, or a marked stream."""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from penstock.kinesis.read.errors import StreamReadError
from penstock.sources.given_columns import GivenColumns
from penstock.sources.log_source import ChangesSource
from penstock.sources.marked_driver import MarkedDriver
from penstock.sources.marked_query import LATEST, STREAM, MarkedQuery
from penstock.sources.marked_rows import Columns, Typed, marked_schema
from penstock.sources.marked_source import MarkedReader, MarkedStreamReader


class PenstockSource(DataSource):
    """What `penstock.spark.register` registers: with `kinesis.streamName` it reads that, else a directory."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        is_stream = any(name.lower() == STREAM for name in options)
        self._query = MarkedQuery.parse(options) if is_stream else None
        self._log = None if is_stream else ChangesSource(options)
        self._typed: Typed | None = None

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "penstock"

    def schema(self) -> StructType:
        """The columns."""
        if self._query is None:
            assert self._log is not None, "one of both"
            return self._log.schema()
        if not self._query.is_raw:
            self._typed = MarkedDriver(self._query).look()
        return marked_schema(self._typed, self._query.tables)

    def reader(self, schema: StructType) -> DataSourceReader:
        """For `spark.read`."""
        if self._query is not None:
            if self._query.start == LATEST:
                raise StreamReadError(
                    f"startingPosition {LATEST} is for readStream: nothing that is there now stands behind it"
                )
            return MarkedReader(self._query, self._columns(schema))
        assert self._log is not None, "one of both"
        return self._log.reader(schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For `spark.readStream`."""
        if self._query is None:
            raise StreamReadError(
                "a log directory can't be read as a stream: use spark.read, or name a marked stream with"
                ' .option("kinesis.streamName", …)'
            )
        return MarkedStreamReader(self._query, self._columns(schema))

    def _columns(self, schema: StructType) -> Columns:
        """How to read what `schema` says: Spark asks for ours only if the user has given none."""
        assert self._query is not None, "a marked stream"
        if self._typed is not None:
            return self._typed
        if not self._query.is_raw:
            return GivenColumns(schema)
        if schema.simpleString() != marked_schema(None, ()).simpleString():
            raise StreamReadError(
                "the columns of records are what they are (docs/spark.md): leave out .schema(…), or name a"
                ' table with .option("table", …)'
            )
        return None

"""Names of tables and columns in Spark SQL, whatever characters Postgres allowed in them."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F


def quote(name: str) -> str:
    """A name as Spark SQL takes it."""
    return "`" + name.replace("`", "``") + "`"


def column_of(name: str, of: str | None = None) -> Column:
    """A column by its plain name, of the DataFrame with the alias `of`, or of the only one."""
    return F.col(quote(name) if of is None else f"{of}.{quote(name)}")

"""Whether a shape's `where` can be trusted to judge rows: what is wrong with it, in words.

A row is judged by its own values alone, so that it enters or leaves the shape only by a change of it. What
asks the clock, chance, the session, other rows or foreign code is refused. The text is only ever read as one
expression; comments in it end with it, and nothing behind it is run. No Spark job runs here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from logging import LogRecord
from typing import Any, Final

from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import ParseException, PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DataType, StructField, StructType

from penstock.decoding.rows import Column
from penstock.model.relation import Relation
from penstock.model.shape import ShapesFile, shape_line
from penstock.postgres.catalog.table_facts import TableFacts, to_columns

_CATALYST: Final = "org.apache.spark.sql.catalyst.expressions."
_SUBQUERY: Final = _CATALYST + "SubqueryExpression"
_FOREIGN: Final = (
    _CATALYST + "UserDefinedExpression",
    _CATALYST + "CallMethodViaReflection",
    _CATALYST + "ApplyFunctionExpression",
    "org.apache.spark.sql.catalyst.analysis.SQLFunctionExpression",
)
# By the names of their classes. Spark calls these deterministic: within one query they are.
_CLOCKS: Final = ("CurrentDate", "CurrentTime", "CurrentTimestamp", "LocalTimestamp", "Now")
_OF_THE_SESSION: Final = (
    "CurrentCatalog",
    "CurrentDatabase",
    "CurrentPath",
    "CurrentTimeZone",
    "CurrentUser",
    "SparkVersion",
    "VariableReference",
)
_OF_CHANCE: Final = ("AesEncrypt",)
_TIMES: Final = ("date", "timestamp", "timestamp_ntz", "time")
_SPECIAL: Final = r"\s*(?:now|today|tomorrow|yesterday)\b"
_SPECIAL_TEXT: Final = re.compile(_SPECIAL, re.IGNORECASE)
# Such a literal is a plain moment as soon as it is parsed, so only the text shows it.
_SPECIAL_LITERAL: Final = re.compile(rf"\b(?:date|timestamp(?:_ltz|_ntz)?)\s*['\"]{_SPECIAL}", re.IGNORECASE)
_MEANS_NOW: Final = "a date or time that means now changes by itself, and rows would stay where they are"
_CODES: Final = re.compile(r"^\[[A-Z_.]+\] |\.? SQLSTATE: \w+")
_PLACE: Final = re.compile(r"line \d+, pos \d+")
_CHATTERING: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


def where_refusals(spark: SparkSession, file: ShapesFile, facts: Mapping[Relation, TableFacts]) -> list[str]:
    """A line for each `where` of a shapes file that Spark can't take; tables without facts are left out."""
    found = []
    for shape in file.shapes:
        known = facts.get(shape.table)
        if shape.where is None or known is None:
            continue
        wrong = check_where(spark, to_columns(known, None), shape.where)
        if wrong is not None:
            found.append(shape_line(file.path, f"shape {shape.name!r}", f"where: {wrong}", "correct it"))
    return found


def check_where(spark: SparkSession, columns: Sequence[Column], where: str) -> str | None:
    """None if the condition may judge rows with these columns; else what is wrong with it, in words."""
    fields = [StructField(column.name, DataType.fromDDL(column.lake.spark)) for column in columns]
    rows = spark.createDataFrame([], StructType(fields))
    with _without_chatter():
        try:
            return _form(spark, where) or _judge(rows.select(F.expr(where)))
        except PySparkException as error:
            return _in_words(error, rows.columns)
        except Py4JError:
            return "Spark can't make sense of it"


def _form(spark: SparkSession, where: str) -> str | None:
    """What shows before names are looked up."""
    parsed = spark._jsparkSession.sessionState().sqlParser().parseExpression(where)
    kind = _class_of(parsed)
    if kind == "Alias":
        return f"{parsed.name()!r} stands behind the condition and would be a name for it"
    if kind in ("MultiAlias", "UnresolvedStar"):
        return "it is not one condition"
    return _MEANS_NOW if _SPECIAL_LITERAL.search(where) else None


def _judge(judged: DataFrame) -> str | None:
    plan = judged._jdf.queryExecution().analyzed()
    if _class_of(plan) != "Project" or not plan.child().children().isEmpty():
        return "it looks at more than one row, or makes several of one: a row is judged by itself"
    (field,) = judged.schema.fields
    if field.dataType != BooleanType():
        return f"it is not true or false but {field.dataType.simpleString()}"
    return next(_objections(plan.expressions().apply(0)), None)


def _objections(expression: Any) -> Iterator[str]:
    children = expression.children()
    parts = [children.apply(place) for place in range(children.size())]
    kind = _class_of(expression)
    if _is_a(expression, _SUBQUERY):
        yield "it holds a subquery: a row is judged by itself"
    elif any(_is_a(expression, foreign) for foreign in _FOREIGN):
        yield f"{expression.prettyName()} runs code that is not Spark's own"
    elif kind in _CLOCKS:
        yield f"{expression.prettyName()} changes by itself, and rows would stay where they are"
    elif kind in _OF_THE_SESSION:
        yield f"{expression.prettyName()} depends on the session and not on the row"
    elif kind in _OF_CHANCE or (not expression.deterministic() and all(p.deterministic() for p in parts)):
        yield f"{expression.prettyName()} gives another result each time"
    elif expression.dataType().typeName() in _TIMES and any(map(_is_special_text, parts)):
        yield _MEANS_NOW
    for part in parts:
        yield from _objections(part)
    if kind == "Cast" and expression.foldable():
        # A constant that doesn't fit its type would stop every flush.
        expression.eval(None)


def _is_special_text(expression: Any) -> bool:
    if not expression.foldable() or expression.dataType().typeName() != "string":
        return False
    return _SPECIAL_TEXT.match(str(expression.eval(None))) is not None


def _in_words(error: PySparkException, names: Sequence[str]) -> str:
    condition = error.getCondition() or ""
    if condition.startswith("UNRESOLVED_COLUMN"):
        name = (error.getMessageParameters() or {}).get("objectName", "").replace("`", "")
        close = get_close_matches(name, names, n=1)
        return f"there is no column {name!r}" + (f"; did you mean {close[0]!r}?" if close else "")
    text = _CODES.sub("", " ".join((error.getMessage() or str(error)).split())).strip()
    if isinstance(error, ParseException):
        place = _PLACE.search(str(error))
        return f"it can't be parsed: {text}" + (f" at {place[0]}" if place else "")
    return text


def _class_of(java: Any) -> str:
    return str(java.getClass().getSimpleName())


def _is_a(java: Any, name: str) -> bool:
    return bool(is_instance_of(SparkContext._gateway, java, name))


@contextmanager
def _without_chatter() -> Iterator[None]:
    """PySpark writes pages about an error to the terminal as it raises it."""
    # Asked of the logging module, it would be a logger without PySpark's own methods, for good.
    loggers = [PySparkLogger.getLogger(name) for name in _CHATTERING]
    for logger in loggers:
        logger.addFilter(_nothing)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(_nothing)


def _nothing(record: LogRecord) -> bool:
    return False

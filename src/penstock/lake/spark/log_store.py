"""Our log stores: how commits reach a disk, or S3.

Their sources say what they do (java/penstock/*.java). They are compiled when the package is built
(hatch_build.py), and lie beside their sources. A package that was built without Java has none of them:
`penstock capture` doesn't need them.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final

import structlog

from penstock.lake.errors import LogStoreMissing

FOR_FILES: Final = "penstock.DurableLogStore"
FOR_S3: Final = "penstock.S3LogStore"
EXPECTED_VERSION: Final = "penstock.expectedReadVersion"
"""The session's setting that names the version from which its next MERGE must be made."""
REFUSED: Final = "penstock: a commit from version"
"""How the store begins its message about one that isn't."""

_LISTING_FIX: Final = (
    "use hadoop-aws of the same version as Spark's own Hadoop, and the Delta that came with Penstock"
    " (docs/shapes.md, Tables on S3)"
)
_log = structlog.get_logger()

_JAR: Final = Path(str(files("penstock.lake.spark") / "java" / "log_store.jar"))


def log_store_jar(jar: Path = _JAR) -> Path:
    """The jar with the classes. LogStoreMissing if it isn't there."""
    if not jar.is_file():
        raise LogStoreMissing(
            f"{jar} is missing: the package was built without Java, or not at all. Fix: have Java 17 or 21 on"
            " the PATH or in JAVA_HOME, then run `make setup`, or install the package from its sources again"
        )
    return jar


@cache
def say_whole_listing(reason: str | None) -> None:
    """Say, once a process for each reason, that looks at tables on S3 list all of their logs.

    None: they don't. Nothing is wrong in the tables, but each look costs what the whole log does.
    """
    if reason is not None:
        _log.warning("whole_log_listed", detail=reason, fix=_LISTING_FIX)

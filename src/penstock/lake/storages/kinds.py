"""What a storage can be, by how it is written: the one table that all who look at its URL ask. Pure.

Who opens its tables stands in opening.py, who reads them without Spark in outside.py.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple


class Kind(NamedTuple):
    """A kind of storage."""

    scheme: str
    said: str
    """How it is written, in words."""
    form: re.Pattern[str] | None = None
    """None: what no other kind is."""
    has_tables: bool = True
    """Whether it holds tables, and the registry beside them."""


DIRECTORY: Final = Kind("", "a directory")
BUCKET: Final = Kind("s3a", "s3a://bucket/path", re.compile(r"s3a://[a-z0-9][a-z0-9.-]*(/.*)?"))
STREAM: Final = Kind(
    "kinesis",
    "kinesis://stream",
    re.compile(r"kinesis://[A-Za-z0-9_.-]{1,128}(\?marks=[A-Za-z0-9_.-]{1,128})?"),
    has_tables=False,
)
KINDS: Final = (DIRECTORY, BUCKET, STREAM)

# Spark knows more of these than we do, and one slash is enough for it: `dbfs:/lake`.
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
TABLES_RULE: Final = (
    f"name {' or '.join(kind.said for kind in KINDS if kind.has_tables)}, without credentials"
)
STORAGE_RULE: Final = "; or ".join(
    [TABLES_RULE, *(f"{kind.said}, for changes instead of tables" for kind in KINDS if not kind.has_tables)]
)


def kind_of(storage: str) -> Kind | None:
    """The kind of a storage; None if it is none that we know, or isn't written as that is."""
    if not storage.isprintable():
        return None
    for kind in KINDS:
        if kind.form is not None and kind.form.fullmatch(storage):
            return kind
    return None if not storage or _URL.match(storage) or storage.startswith("~") else DIRECTORY

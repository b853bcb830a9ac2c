"""Delta's checksums of versions: a small file beside each commit, on every storage; only the newest are read.

Those below the last checkpoint can go. On a file system Hadoop has written a checksum of each of them, too;
on S3 it writes none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.lake.delta.log_files import S3LogFiles

_CHECKSUM: Final = re.compile(r"\.?([0-9]{20})\.crc(?:\.crc)?")


def delete_from_directory(table: str, below: int) -> None:
    """Delete the checksums of all versions below this one. Blocks."""
    directory = Path(table, "_delta_log")
    for name in _checksums(os.listdir(directory), below):
        with suppress(FileNotFoundError):
            (directory / name).unlink()


def delete_from_bucket(table: str, since: int, below: int) -> None:
    """Delete the checksums of the versions from `since` to before `below`. Blocks; StorageFailed."""
    files = S3LogFiles(table)
    files.delete(_checksums(files.names_between(since, below), below))


def _checksums(names: Iterable[str], below: int) -> Iterator[str]:
    found = ((name, _CHECKSUM.fullmatch(name)) for name in names)
    return (name for name, version in found if version is not None and int(version[1]) < below)

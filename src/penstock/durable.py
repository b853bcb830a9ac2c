"""Files and directories that survive a power cut: a name counts only once its directory is synced."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

_PARTIAL: Final = ".partial"


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(directory: Path, mode: int = 0o700) -> None:
    """Make a directory and its missing parents, each durable; fine if it is there."""
    if directory.is_dir():
        return
    make_directory(directory.parent, mode)
    directory.mkdir(mode=mode, exist_ok=True)
    sync_directory(directory.parent)


def try_to_write(directory: Path) -> Path:
    """Sync a file without a name there; OSError says why it can't be written.

    Nothing is made: where the directory is missing, the nearest one above stands for it, and is returned.
    """
    place = nearest_existing(directory)
    with tempfile.TemporaryFile(dir=place) as file:
        file.write(b"penstock")
        file.flush()
        os.fsync(file.fileno())
    return place


def nearest_existing(directory: Path) -> Path:
    """The directory, or the nearest one above it that exists."""
    return next(place for place in (directory, *directory.absolute().parents) if place.exists())


def write_whole(target: Path, content: bytes) -> None:
    """Put a file in its place, or another one's; its name is durable when its directory is synced.

    It gets its name when its content is on disk, so whatever has a name is complete. Until then it is a
    hidden file of this writer's own: a writer that was frozen and wakes up can never rename what another one
    is still writing. What a crash leaves of it is removed when the same name is written again.
    """
    directory, prefix = target.parent, f".{target.name}."
    for leftover in os.listdir(directory):
        if leftover.startswith(prefix) and leftover.endswith(_PARTIAL):
            (directory / leftover).unlink(missing_ok=True)
    descriptor, partial = tempfile.mkstemp(_PARTIAL, prefix, directory)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.rename(partial, target)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise

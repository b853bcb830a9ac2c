"""Directories that survive a power cut: a name counts only once its directory is synced."""

from __future__ import annotations

import os
from pathlib import Path


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

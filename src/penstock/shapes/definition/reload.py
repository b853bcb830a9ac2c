"""Reload: what is different in a shapes file that was read again, and whether a service can follow it."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

from penstock.model.shape import ShapesFile, definition_hash
from penstock.shapes.definition.shapes_file import ShapeFileError


class Reload(NamedTuple):
    """The shapes of a new file against those of the former one, by name."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    edited: tuple[str, ...]
    """Their tables hold something else from now on: they are snapshotted again."""
    altered: tuple[str, ...]
    """Only their pace, or the like."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is different."""
        return not any(self)

    @property
    def not_as_before(self) -> frozenset[str]:
        """Those whose tables don't go on as they are."""
        return frozenset((*self.added, *self.removed, *self.edited))


def compare_files(before: ShapesFile, now: ShapesFile) -> Reload:
    """What is different; ShapeFileError if only a new process can follow that."""
    if now.storage != before.storage:
        raise ShapeFileError(
            f"{now.path}: storage was {before.storage} and is {now.storage}. Fix: start the service again:"
            " its tables are there"
        )
    old, new = ({shape.name: shape for shape in file.shapes} for file in (before, now))
    both = [name for name in new if name in old]
    edited = [name for name in both if definition_hash(old[name]) != definition_hash(new[name])]
    return Reload(
        tuple(name for name in new if name not in old),
        tuple(name for name in old if name not in new),
        tuple(edited),
        tuple(name for name in both if name not in edited and old[name] != new[name]),
    )


def terminal_is_gone() -> bool:
    """Whether the terminal that this process writes to was closed: SIGHUP says that too."""
    if not sys.stdout.isatty():
        return False
    try:
        os.tcgetpgrp(sys.stdout.fileno())
    except OSError:
        return True
    return False

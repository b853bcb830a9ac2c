"""Lanes: which tests two workers may run at the same time (`pytest -n 2 --dist loadfile`)."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Final

from xdist.scheduler import LoadFileScheduling

SPARK_FIXTURES: Final = frozenset({"started", "spark", "new_app", "run_once", "serve"})
"""Who needs one of these needs the Spark of the worker's own process."""
_SPARK_LANE: Final = "spark"


class Lanes(LoadFileScheduling):  # type: ignore[misc] # xdist has no types
    """Hands out lanes, those with most tests first: a worker runs a lane from its beginning to its end.

    All files that use the Spark of their own process are one lane: a second one, with a Java of a gigabyte,
    would take longer to start than most of its tests. Any other file is a lane, so that what its tests share
    is started once.
    """

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return _SPARK_LANE if uses_spark(self.config.rootpath / file) else file


@cache
def uses_spark(file: Path) -> bool:
    """Whether a test or a fixture of this file asks for one of SPARK_FIXTURES."""
    functions = [
        node
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return any(argument.arg in SPARK_FIXTURES for function in functions for argument in function.args.args)

"""Our log store: how commits reach the disk. A class in Java, compiled once by what Spark brings along.

Its source says what it does (java/penstock/DurableLogStore.java). The compiled class lies near Delta's jars,
under a name that follows from the source: it is compiled at `make setup`, or else at the first start.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import zipfile
from collections.abc import Sequence
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Final

from penstock.errors import PenstockError

CLASS: Final = "penstock.DurableLogStore"
EXPECTED_VERSION: Final = "penstock.expectedReadVersion"
"""The session's setting that names the version from which its next commit must be made."""
REFUSED: Final = "penstock: a commit from version"
"""How the store begins its message about one that isn't."""

_SOURCE: Final = Path(str(files("penstock.spark") / "java" / "penstock" / "DurableLogStore.java"))
_CLASS_FILE: Final = f"{CLASS.replace('.', '/')}.class"
_COMPILER: Final = "org.codehaus.commons.compiler.samples.CompilerDemo"
_TIMEOUT_S: Final = 120


class CompileFailed(PenstockError):
    """The log store could not be compiled."""


def log_store_jar(directory: Path, classpath: Sequence[Path]) -> Path:
    """The jar with the class, in `directory`; compiled against these jars if it isn't there. Blocks."""
    jar = directory / f"log-store-{sha256(_SOURCE.read_bytes()).hexdigest()[:16]}.jar"
    if not jar.is_file():
        with tempfile.TemporaryDirectory(prefix=".compile-", dir=directory) as scratch:
            whole = Path(scratch, "whole.jar")
            with zipfile.ZipFile(whole, "w") as archive:
                archive.write(_compile(Path(scratch), classpath), _CLASS_FILE)
            # Others may do the same: whoever comes last puts the same in its place.
            whole.rename(jar)
    return jar


def _compile(target: Path, classpath: Sequence[Path]) -> Path:
    jars = os.pathsep.join(map(str, classpath))
    command = [_java(), "-cp", jars, _COMPILER, "-d", str(target), "-classpath", jars, str(_SOURCE)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompileFailed(f"can't compile {_SOURCE.name}: {error}") from error
    compiled = target / _CLASS_FILE
    if done.returncode or not compiled.is_file():
        last_words = "\n".join((done.stdout + done.stderr).strip().splitlines()[-5:])
        raise CompileFailed(f"can't compile {_SOURCE.name}:\n{last_words}")
    return compiled


def _java() -> str:
    """As Spark's own scripts find it."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else "java"

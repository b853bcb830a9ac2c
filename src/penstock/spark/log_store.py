"""Our log stores: how commits reach a disk, or S3. Java, compiled once by what Spark brings along.

Their sources say what they do (java/penstock/*.java). The compiled classes lie near Delta's jars, under a
name that follows from the sources: they are compiled at `make setup`, or else at the first start.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Final

from penstock.errors import PenstockError

FOR_FILES: Final = "penstock.DurableLogStore"
FOR_S3: Final = "penstock.S3LogStore"
EXPECTED_VERSION: Final = "penstock.expectedReadVersion"
"""The session's setting that names the version from which its next MERGE must be made."""
REFUSED: Final = "penstock: a commit from version"
"""How the store begins its message about one that isn't."""

_SOURCES: Final = Path(str(files("penstock.spark") / "java"))
_CLASSES: Final = ("penstock/DurableLogStore", "penstock/S3LogStore")
_COMPILER: Final = "org.codehaus.commons.compiler.samples.CompilerDemo"
_TIMEOUT_S: Final = 120


class CompileFailed(PenstockError):
    """The log stores could not be compiled."""


def log_store_jar(directory: Path, classpath: Sequence[Path]) -> Path:
    """The jar with the classes, in `directory`; compiled against these jars if it isn't there. Blocks.

    CompileFailed if it can't be made, or not be put there.
    """
    sources = [_SOURCES / f"{name}.java" for name in _CLASSES]
    made_of = [source.read_bytes() for source in sources] + [path.name.encode() for path in classpath]
    jar = directory / f"log-store-{sha256(b''.join(made_of)).hexdigest()[:16]}.jar"
    if zipfile.is_zipfile(jar):
        return jar
    try:
        with tempfile.TemporaryDirectory(prefix=".compile-", dir=directory) as scratch:
            _compile(sources, Path(scratch), classpath)
            whole = Path(scratch, "whole.jar")
            with zipfile.ZipFile(whole, "w") as archive:
                for name in _CLASSES:
                    archive.write(Path(scratch, f"{name}.class"), f"{name}.class")
            # Others may do the same: whoever comes last puts the same in its place.
            whole.rename(jar)
    except OSError as error:
        raise CompileFailed(
            f"can't put the log stores into {directory}: {error.strerror or error}. Fix: let a user who may"
            f" write there run `{Path(sys.executable).name} -m penstock.spark.jars`"
        ) from error
    return jar


def _compile(sources: Sequence[Path], target: Path, classpath: Sequence[Path]) -> None:
    jars = os.pathsep.join(map(str, classpath))
    command = [_java(), "-cp", jars, _COMPILER, "-d", str(target), "-classpath", jars, *map(str, sources)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompileFailed(f"can't compile the log stores: {error}") from error
    if done.returncode or not all((target / f"{name}.class").is_file() for name in _CLASSES):
        last_words = "\n".join((done.stdout + done.stderr).strip().splitlines()[-5:])
        raise CompileFailed(f"can't compile the log stores:\n{last_words}")


def _java() -> str:
    """As Spark's own scripts find it."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else "java"

"""Build hook: our log stores, which are Java, are compiled when the package is built.

So nothing is compiled where Penstock runs. The compiler is the one inside of the Java runtime (a JDK has it,
and Debian's JRE too); the classes are compiled against Spark's and Delta's own jars.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_ROOT = Path(__file__).parent
_PLACE = Path("src", "penstock", "lake", "spark", "java")
_RELEASE = "17"
_TIMEOUT_S = 120


class CompileFailed(Exception):
    """The log stores could not be compiled."""


class LogStoresHook(BuildHookInterface[Any]):
    """Puts `log_store.jar` beside its sources, and into the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; an editable installation needs it as well."""
        if self.target_name == "wheel":
            jar = _ROOT / _PLACE / "log_store.jar"
            compile_log_stores(_ROOT / _PLACE, jar, classpath())
            build_data["artifacts"].append(str(_PLACE / jar.name))


def classpath() -> list[Path]:
    """Spark's jars and Delta's; the latter are fetched if they aren't in the cache."""
    sys.path.insert(0, str(_ROOT / "src"))
    try:
        from penstock.lake.spark import jars
    finally:
        sys.path.pop(0)
    import pyspark

    directory = jars.cache_directory()
    jars.fetch_if_missing(directory)
    return [*sorted(Path(pyspark.__file__).parent.glob("jars/*.jar")), *jars.jar_paths(directory)]


def compile_log_stores(sources: Path, jar: Path, classpath: Sequence[Path]) -> None:
    """Compile all sources into a jar, which appears whole or not at all."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else "java"
    with tempfile.TemporaryDirectory(prefix="log-store-", dir=jar.parent) as scratch:
        command = [
            *(java, "-m", "jdk.compiler/com.sun.tools.javac.Main"),
            *("-source", _RELEASE, "-target", _RELEASE, "-proc:none", "-Xlint:all,-options,-path", "-Werror"),
            *("-classpath", os.pathsep.join(map(str, classpath)), "-d", scratch),
            *map(str, sorted(sources.rglob("*.java"))),
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CompileFailed(f"can't compile the log stores: {error}") from error
        if done.returncode:
            words = (done.stdout + done.stderr).strip()
            raise CompileFailed(f"can't compile the log stores (a JDK 17 or 21 is needed):\n{words}")
        whole = Path(scratch, "whole.jar")
        with zipfile.ZipFile(whole, "w") as archive:
            for compiled in sorted(Path(scratch).rglob("*.class")):
                # Times would make each build another one.
                name = zipfile.ZipInfo(compiled.relative_to(scratch).as_posix())
                archive.writestr(name, compiled.read_bytes())
        whole.rename(jar)

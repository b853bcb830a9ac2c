"""Build hook: our log stores, which are Java, are compiled when the package is built.

So nothing is compiled where Penstock runs. The compiler is the one inside of the Java runtime (a JDK has it,
and Debian's JRE too). The classes are compiled against `java_api/`: the few signatures of Hadoop, Delta and
Jackson that they use. So a build fetches nothing, and `tests/spark/test_log_store.py` proves that Spark's
and Delta's own jars give the same bytes.

`penstock capture` needs no Java. Without a compiler the package is built without the jar, and `penstock
shapes` says what is missing when it starts.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_PLACE = Path("src", "penstock", "lake", "spark", "java")
_RELEASE = 17
_TIMEOUT_S = 120


class CompileFailed(Exception):
    """The log stores could not be compiled."""


class LogStoresHook(BuildHookInterface[Any]):
    """Puts `log_store.jar` beside its sources, and into the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, if this machine can; an editable installation needs it as well."""
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        jar = root / _PLACE / "log_store.jar"
        # One of a former build may be of other sources.
        jar.unlink(missing_ok=True)
        if not has_compiler():
            self.app.display_warning(
                f"no Java {_RELEASE} with a compiler: built without {jar.name}, which `penstock shapes` needs"
            )
            return
        signatures = ("-sourcepath", str(root / "java_api"), "-implicit:none")
        compile_log_stores(root / _PLACE, jar, signatures)
        build_data["artifacts"].append(str(_PLACE / jar.name))


def has_compiler() -> bool:
    """Whether `java` has a compiler that is new enough."""
    try:
        words = _compiler("-version").stdout
    except CompileFailed:
        return False
    found = re.match(r"javac (\d+)", words)
    return found is not None and int(found[1]) >= _RELEASE


def compile_log_stores(sources: Path, jar: Path, against: Sequence[str]) -> None:
    """Compile all sources into a jar, which appears whole or not at all.

    `against`: the compiler's options that say where other classes are found.
    """
    with tempfile.TemporaryDirectory(prefix="log-store-", dir=jar.parent) as scratch:
        done = _compiler(
            *("-source", str(_RELEASE), "-target", str(_RELEASE), "-proc:none"),
            *("-Xlint:all,-options,-path", "-Werror", *against, "-d", scratch),
            *map(str, sorted(sources.rglob("*.java"))),
        )
        if done.returncode:
            raise CompileFailed(f"can't compile the log stores:\n{(done.stdout + done.stderr).strip()}")
        whole = Path(scratch, "whole.jar")
        with zipfile.ZipFile(whole, "w") as archive:
            for compiled in sorted(Path(scratch).rglob("*.class")):
                # Times would make each build another one.
                name = zipfile.ZipInfo(compiled.relative_to(scratch).as_posix())
                archive.writestr(name, compiled.read_bytes())
        whole.rename(jar)


def _compiler(*arguments: str) -> subprocess.CompletedProcess[str]:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else "java"
    command = [java, "-m", "jdk.compiler/com.sun.tools.javac.Main", *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompileFailed(f"can't compile the log stores: {error}") from error

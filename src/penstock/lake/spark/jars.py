"""Delta's jars: fetched once, checked, and found again without a network.

`python -m penstock.lake.spark.jars` (a step of `make setup`) fetches them with Spark's own client, through
whatever mirror or proxy it is set up to use. They land in `cache_directory()`, which appears whole or not at
all.

Delta asks for thirty jars. Spark has most of them, often newer, and Unity Catalog's are of no use here: only
`JARS` are kept.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Final

from penstock import exit_codes
from penstock.lake.errors import JarsMissing
from penstock.lake.spark.log_store import log_store_jar

DELTA_VERSION: Final = "4.4.0"
SPARK_VERSION: Final = "4.2"

_SPARK_MODULE: Final = f"delta-spark_{SPARK_VERSION}_2.13"
_COORDINATES: Final = f"io.delta:{_SPARK_MODULE}:{DELTA_VERSION}"

JARS: Final[Mapping[str, str]] = MappingProxyType(
    {
        f"{_SPARK_MODULE}-{DELTA_VERSION}.jar": (
            "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead"
        ),
        f"delta-storage-{DELTA_VERSION}.jar": (
            "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc"
        ),
        f"delta-kernel-api-{DELTA_VERSION}.jar": (
            "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11"
        ),
        f"delta-kernel-defaults-{DELTA_VERSION}.jar": (
            "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b"
        ),
    }
)
"""What Spark needs beside its own jars, by name, with the SHA-256 of each."""

_IN_SPARK_OR_NOT_NEEDED: Final = (
    "com.fasterxml.jackson.core:*",
    "com.fasterxml.jackson.datatype:*",
    "com.github.luben:*",
    "com.google.code.findbugs:*",
    "commons-logging:*",
    "commons-pool:*",
    "io.airlift:*",
    "io.unitycatalog:*",
    "javax.annotation:*",
    "org.apache.hadoop:*",
    "org.apache.logging.log4j:*",
    "org.apache.parquet:*",
    "org.locationtech.jts:*",
    "org.roaringbitmap:*",
    "org.slf4j:*",
    "org.xerial.snappy:*",
)
_FETCH_TIMEOUT_S: Final = 600


def cache_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the jars of these versions are kept."""
    cache = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME", "~"), ".cache").expanduser()
    return Path(cache, "penstock", "jars", f"{DELTA_VERSION}-spark{SPARK_VERSION}")


def jar_paths(directory: Path) -> list[Path]:
    """The jars in the cache, for `spark.jars`. JarsMissing if one isn't there."""
    paths = [directory / name for name in JARS]
    if missing := [path.name for path in paths if not path.is_file()]:
        raise JarsMissing(
            f"Delta's jars are not in {directory} (missing: {', '.join(missing)}): "
            f"run `make setup`, or `{Path(sys.executable).name} -m penstock.lake.spark.jars`"
        )
    return paths


def jars_for_spark(directory: Path) -> list[Path]:
    """All that Spark needs beside its own jars: Delta's, and our log stores'."""
    return [*jar_paths(directory), log_store_jar()]


def fetch_if_missing(directory: Path) -> None:
    """Fetch them, and say so, unless they are in the cache."""
    if not _is_whole(directory):
        print(f"jars: fetching Delta {DELTA_VERSION} for Spark {SPARK_VERSION} into {directory}", flush=True)
        fetch(directory)


def fetch(directory: Path) -> None:
    """Bring the jars into the cache. JarsMissing, with the client's last words, if that fails. Blocks."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=directory.parent) as scratch:
        _run_client(Path(scratch))
        whole = Path(scratch, "whole")
        whole.mkdir()
        for name, digest in JARS.items():
            _take(Path(scratch, "jars", f"io.delta_{name}"), whole / name, digest)
        _put_in_place(whole, directory)


def _run_client(scratch: Path) -> None:
    """Have spark-submit resolve the packages for a program that does nothing: no Spark is started."""
    program = scratch / "nothing.py"
    program.touch()
    command = [
        str(_spark_home() / "bin" / "spark-submit"),
        *("--master", "local[1]", "--packages", _COORDINATES),
        *("--exclude-packages", ",".join(_IN_SPARK_OR_NOT_NEEDED)),
        *("--conf", f"spark.jars.ivy={scratch}"),
        str(program),
    ]
    environ = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    try:
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JarsMissing(f"can't fetch {_COORDINATES}: {error}") from error
    if done.returncode:
        raise JarsMissing(
            f"can't fetch {_COORDINATES}: spark-submit ended with {done.returncode}\n{_reason(done.stderr)}"
        )


def _reason(said: str) -> str:
    """What Ivy says of the servers it asked, else the client's last words; a Java stack tells neither."""
    lines = [line.strip() for line in said.splitlines() if line.strip() and not line.startswith("\tat ")]
    refused = [line for line in lines if line.startswith("Server access error")]
    return "\n".join(refused[-2:] or lines[-5:])


def _spark_home() -> Path:
    # pyspark's own copy, whatever SPARK_HOME says: its Ivy is the one that was tried.
    import pyspark

    return Path(pyspark.__file__).parent


def _take(source: Path, target: Path, digest: str) -> None:
    if not source.is_file():
        raise JarsMissing(f"{_COORDINATES} came without {target.name}")
    found = sha256(source.read_bytes()).hexdigest()
    if found != digest:
        raise JarsMissing(f"{target.name} is not the one that was tried: its SHA-256 is {found}")
    shutil.move(source, target)


def _put_in_place(whole: Path, directory: Path) -> None:
    """Rename the finished directory. What is there already is whole too, or of no use to anyone."""
    if directory.exists() and not _is_whole(directory):
        shutil.rmtree(directory)
    try:
        whole.rename(directory)
    except OSError:
        jar_paths(directory)


def _is_whole(directory: Path) -> bool:
    return all((directory / name).is_file() for name in JARS)


def main() -> int:
    """Fetch the jars if they aren't there; one line says what happened."""
    if not version("pyspark").startswith(f"{SPARK_VERSION}."):
        print(f"jars: pyspark {version('pyspark')} is not {SPARK_VERSION}", file=sys.stderr)
        return exit_codes.FAILED
    directory = cache_directory()
    try:
        fetch_if_missing(directory)
    except JarsMissing as error:
        print(f"jars: {error}", file=sys.stderr)
        return exit_codes.FAILED
    return exit_codes.OK


if __name__ == "__main__":
    sys.exit(main())

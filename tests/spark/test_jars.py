from __future__ import annotations

from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

import pytest

from penstock.lake.errors import JarsMissing
from penstock.lake.spark import jars
from penstock.lake.spark.jars import DELTA_VERSION, JARS, SPARK_VERSION, cache_directory, fetch, jar_paths


def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Stands in for spark-submit; $ivy is the directory that it is told to fetch into."""
    program = tmp_path / "bin" / "spark-submit"
    program.parent.mkdir()
    find = 'for word; do case $word in spark.jars.ivy=*) ivy=${word#*=};; esac; done\nmkdir -p "$ivy/jars"\n'
    program.write_text(f"#!/bin/sh\n{find}{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(jars, "_spark_home", lambda: tmp_path)


def planted(monkeypatch: pytest.MonkeyPatch) -> str:
    """Small jars that count as the right ones; the script that fetches them."""
    monkeypatch.setattr(jars, "JARS", {name: sha256(name.encode()).hexdigest() for name in JARS})
    return "\n".join(f'printf %s {name} > "$ivy/jars/io.delta_{name}"' for name in JARS)


def test_the_python_package_and_the_jars_are_of_one_version() -> None:
    assert version("delta-spark") == DELTA_VERSION
    assert version("pyspark").startswith(f"{SPARK_VERSION}.")


def test_the_cache_is_where_caches_are() -> None:
    name = f"penstock/jars/{DELTA_VERSION}-spark{SPARK_VERSION}"
    assert cache_directory({"XDG_CACHE_HOME": "/c", "HOME": "/h"}) == Path("/c", name)
    assert cache_directory({"XDG_CACHE_HOME": "", "HOME": "/h"}) == Path("/h/.cache", name)


def test_a_missing_jar_is_named_with_the_command_to_run(tmp_path: Path) -> None:
    first, *others = JARS
    for name in others:
        (tmp_path / name).touch()

    with pytest.raises(
        JarsMissing, match=rf"missing: {first}\): run `make setup`, or .* -m penstock.lake.spark.jars"
    ):
        jar_paths(tmp_path)


def test_a_fetch_leaves_the_jars_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client(tmp_path, monkeypatch, planted(monkeypatch))
    directory = tmp_path / "cache" / "jars"

    fetch(directory)

    assert sorted(path.name for path in jar_paths(directory)) == sorted(JARS)
    assert list(directory.parent.iterdir()) == [directory]


def test_what_an_interrupted_copy_left_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client(tmp_path, monkeypatch, planted(monkeypatch))
    directory = tmp_path / "cache" / "jars"
    directory.mkdir(parents=True)
    (directory / "half").touch()

    fetch(directory)

    assert len(jar_paths(directory)) == len(list(directory.iterdir())) == len(JARS)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo no route to host >&2; exit 3", "ended with 3\nno route to host"),
        (
            r"printf '\tServer access error at url u (PKIX)\nException\n\tat a.b\n' >&2; exit 1",
            r"ended with 1\nServer access error at url u \(PKIX\)$",
        ),
        (
            r"printf 'Exception: no room\n\tat a.b\n\tat c.d\n' >&2; exit 1",
            "ended with 1\nException: no room$",
        ),
        ("true", f"came without {next(iter(JARS))}"),
        (f'echo other > "$ivy/jars/io.delta_{next(iter(JARS))}"', "is not the one that was tried"),
    ],
)
def test_a_failed_fetch_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    client(tmp_path, monkeypatch, script)
    directory = tmp_path / "cache" / "jars"

    with pytest.raises(JarsMissing, match=message):
        fetch(directory)

    assert list(directory.parent.iterdir()) == []

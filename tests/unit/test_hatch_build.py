"""The build hook: with Java our log stores are in the package, without it all the rest."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

import hatch_build
from penstock.lake.errors import LogStoreMissing
from penstock.lake.spark.log_store import log_store_jar

ROOT = Path(hatch_build.__file__).parent
JAVA = Path("src", "penstock", "lake", "spark", "java")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A copy of what is compiled: other tests use the jar of this project."""
    for part in (JAVA / "penstock", Path("java_api")):
        shutil.copytree(ROOT / part, tmp_path / part)
    return tmp_path


def _built(root: Path, target: str = "wheel") -> list[str]:
    """Run the hook; returns what it adds to the package."""
    nothing: Any = None
    hook = hatch_build.LogStoresHook(str(root), {}, nothing, nothing, str(root), target)
    build_data: dict[str, Any] = {"artifacts": []}
    hook.initialize("standard", build_data)
    artifacts: list[str] = build_data["artifacts"]
    return artifacts


def _fake_java(directory: Path, script: str) -> None:
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)


def test_the_log_stores_are_in_a_wheel(root: Path) -> None:
    assert _built(root) == [str(JAVA / "log_store.jar")]

    with zipfile.ZipFile(log_store_jar(root / JAVA / "log_store.jar")) as jar:
        assert jar.namelist() == ["penstock/DurableLogStore.class", "penstock/S3LogStore.class"]


def test_other_targets_have_sources_only(root: Path) -> None:
    assert _built(root, "sdist") == []
    assert not (root / JAVA / "log_store.jar").exists()


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(None, id="no Java"),
        pytest.param("echo Error: Unrecognized option: -m >&2; exit 1", id="Java 8"),
        pytest.param("echo Module jdk.compiler not found >&2; exit 1", id="no compiler"),
        pytest.param("echo javac 11.0.20", id="Java 11"),
    ],
)
def test_without_a_compiler_all_the_rest_is_built(
    root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], script: str | None
) -> None:
    if script is not None:
        _fake_java(root / "home", script)
    monkeypatch.setenv("JAVA_HOME", str(root / "home"))
    jar = root / JAVA / "log_store.jar"
    jar.write_text("of a former build")

    assert _built(root) == []

    said = "".join(capfd.readouterr()).strip()
    assert said == "no Java 17 with a compiler: built without log_store.jar, which `penstock shapes` needs"
    with pytest.raises(LogStoreMissing, match=r"jar is missing: .* without Java.*Fix: .*`make setup`"):
        log_store_jar(jar)


def test_a_source_that_does_not_compile_is_said(root: Path) -> None:
    (root / JAVA / "penstock" / "Bad.java").write_text("class Bad { int x = ; }")

    with pytest.raises(hatch_build.CompileFailed, match=r"Bad\.java:1: error: illegal start of expression"):
        _built(root)
    assert [path.name for path in (root / JAVA).iterdir()] == ["penstock"]

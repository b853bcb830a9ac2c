from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.lake.spark import class_archive
from penstock.lake.spark.class_archive import archive_file, reading

# A Spark that does nothing, in a Java that writes down where its classes come from.
START = """
import sys
from penstock.lake.spark.spark_session import open_session, stop_session
logged = {"spark.driver.extraJavaOptions": f"-Xlog:class+load:file={sys.argv[1]}"}
spark = open_session("local[1]", "classes", logged)
spark.sql("SELECT 1").collect()
stop_session(spark)
"""


def version_with(options: str) -> subprocess.CompletedProcess[str]:
    command = ["java", *shlex.split(options), "-version"]
    return subprocess.run(command, capture_output=True, text=True, check=True)


def test_spark_takes_its_classes_and_deltas_from_the_archive(tmp_path: Path) -> None:
    archive = archive_file()
    assert archive is not None
    assert archive.is_file(), "make setup makes it"

    started = subprocess.run(
        [sys.executable, "-c", START, tmp_path / "classes"], capture_output=True, text=True, check=True
    )

    lines = (tmp_path / "classes").read_text().splitlines()
    from_archive = [line for line in lines if line.endswith("shared objects file (top)")]
    assert len(from_archive) > 0.9 * len([line for line in lines if " org.apache.spark." in line]) > 1_000
    assert any(" io.delta.sql.DeltaSparkSessionExtension " in line for line in from_archive)
    assert started.stderr == ""


def test_another_java_or_other_jars_have_another_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java, jar = tmp_path / "bin" / "java", tmp_path / "a.jar"
    java.parent.mkdir()
    java.touch(0o755)
    jar.write_text("a")
    monkeypatch.setattr(class_archive, "jars_for_spark", lambda _directory: [jar])
    environ = {"JAVA_HOME": str(tmp_path), "HOME": "/h"}

    before = archive_file(environ, prefix="/venv")
    assert before is not None
    assert before.parent == Path("/venv/share/penstock")
    assert archive_file(environ, prefix="/venv") == before
    jar.write_text("ab")
    other_jar = archive_file(environ, prefix="/venv")
    java.write_text("another one")

    assert len({before, other_jar, archive_file(environ, prefix="/venv")}) == 3
    assert archive_file({"JAVA_HOME": "/nowhere", "HOME": "/h"}) is None


def test_what_is_no_archive_for_this_java_is_left_aside_in_silence(tmp_path: Path) -> None:
    strange = tmp_path / "it's strange.jsa"
    strange.write_text("no archive at all")

    assert version_with(reading(strange)).stdout == ""
    assert "sharing" not in version_with(reading(strange)).stderr


def test_without_an_archive_java_gets_no_option(tmp_path: Path) -> None:
    assert reading(None) == reading(tmp_path / "none.jsa") == ""

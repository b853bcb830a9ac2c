from __future__ import annotations

from pathlib import Path

import pytest

from tests.lanes import SPARK_FIXTURES, Lanes, uses_spark

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("text", "uses"),
    [
        ("def test_it(started: Started) -> None: ...", True),
        ("async def test_it(tmp_path: Path, run_once: RunOnce) -> None: ...", True),
        ("@pytest.fixture\ndef table(spark): ...\n\ndef test_it(table): ...", True),
        ("class TestIt:\n    def test_it(self, serve: Serve) -> None: ...", True),
        ("def test_it(postgres): spark = started = 1", False),
        ("", False),
    ],
)
def test_who_asks_for_a_spark(tmp_path: Path, text: str, uses: bool) -> None:
    file = tmp_path / "test_some.py"
    file.write_text(text)
    assert uses_spark(file) is uses


def test_the_fixtures_are_all_that_stand_on_a_started_spark() -> None:
    """A new one that isn't named here would bring a second Spark, and nobody would notice."""
    found = {"started"}
    for file in ("servers/shapes_fixtures.py", "spark/conftest.py", "conftest.py", "faults/conftest.py"):
        found |= fixtures_on(found, (TESTS / file).read_text())
    assert found == SPARK_FIXTURES


def fixtures_on(known: set[str], text: str) -> set[str]:
    """The fixtures of a file that ask for one that is known, in the order of the file."""
    found: set[str] = set()
    for block in text.split("@pytest.fixture")[1:]:
        signature = block.partition("def ")[2].partition(":\n")[0]
        name, _, arguments = signature.partition("(")
        if any(f"{each}:" in arguments for each in known | found):
            found.add(name)
    return found


@pytest.mark.parametrize(
    ("nodeid", "lane"),
    [
        ("tests/spark/test_flush.py::test_it[a::b]", "spark"),
        ("tests/faults/test_shapes_kill.py::test_it", "spark"),
        ("tests/faults/test_outage.py::test_it", "tests/faults/test_outage.py"),
        ("tests/spark/test_jars.py::test_it", "tests/spark/test_jars.py"),
    ],
)
def test_files_on_one_spark_are_one_lane(request: pytest.FixtureRequest, nodeid: str, lane: str) -> None:
    lanes = Lanes.__new__(Lanes)
    lanes.config = request.config
    assert lanes._split_scope(nodeid) == lane

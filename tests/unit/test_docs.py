"""Docs name what exists: settings, metrics, errors and files are checked against the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock import errors
from penstock.kinesis.read.chain import MOST_HELD
from penstock.kinesis.read.marked_plan import MOST_STEPS
from penstock.settings.services import CaptureSettings, ShapesSettings
from penstock.sources.kinesis_options import OPTIONS
from penstock.sources.kinesis_source import COLUMNS
from penstock.status.metrics import CaptureMetrics, ShapesMetrics

ROOT = Path(__file__).parents[2]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()


SHAPES = (ROOT / "docs" / "shapes.md").read_text()
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
SOURCE = ROOT / "src" / "penstock"
DOORS = ("Decoder", "RecordSink", "Feed", "ShapeJobs", "VerifyJobs", "LakeTable", "Status")
SPARK = (ROOT / "docs" / "spark.md").read_text()


def _variables(settings: type[CaptureSettings | ShapesSettings] = CaptureSettings) -> set[str]:
    groups = [field.annotation for field in settings.model_fields.values()]
    return {
        str(field.validation_alias)
        for group in groups
        for field in group.model_fields.values()  # type: ignore[union-attr]
    }


def _metrics(metrics: CaptureMetrics | ShapesMetrics) -> set[str]:
    families = metrics.registry.collect()
    return {
        family.name + ("_total" if family.type == "counter" else "")
        for family in families
        if family.name.startswith("penstock_")
    }


def _leaf_errors() -> set[str]:
    classes = [each for each in vars(errors).values() if isinstance(each, type)]
    return {
        each.__name__
        for each in classes
        if issubclass(each, errors.PenstockError)
        and (not each.__subclasses__() or each is errors.LineLost)
        and each.__module__ == errors.__name__
    }


def test_every_setting_is_documented() -> None:
    missing = {name for name in _variables() if f"`{name}`" not in OPERATIONS}
    assert not missing


def test_every_documented_setting_exists() -> None:
    table = OPERATIONS.partition("## Settings")[2].partition("## ")[0]
    named = set(re.findall(r"`([A-Z][A-Z0-9_]{4,})`", table))
    libpq = {name for name in named if name.startswith("PG")}
    assert named - libpq == _variables()


def test_every_metric_is_documented_and_exists() -> None:
    table = OPERATIONS.partition("## Metrics")[2]
    assert set(re.findall(r"^\| `(penstock_\w+)`", table, re.MULTILINE)) == _metrics(CaptureMetrics())


def test_every_setting_of_shapes_is_documented_and_exists() -> None:
    table = SHAPES.partition("## Settings")[2].partition("## ")[0]
    named = set(re.findall(r"^\| `([A-Z][A-Z0-9_]+)`", table, re.MULTILINE))
    assert named == _variables(ShapesSettings) - _variables()


def test_every_metric_of_shapes_is_documented_and_exists() -> None:
    table = SHAPES.partition("## Metrics")[2].partition("## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(penstock_\w+)`", row)}
    assert named == _metrics(ShapesMetrics())


def test_every_option_and_column_of_penstock_kinesis_is_documented_and_exists() -> None:
    section = SPARK.partition('## `format("penstock_kinesis")`')[2].partition("\n## ")[0]
    named = re.findall(r"^\| `([\w.]+)`", section, re.MULTILINE)
    assert sorted(named) == sorted([*OPTIONS, *COLUMNS.names])


def test_every_error_that_ends_a_leadership_is_documented() -> None:
    missing = {name for name in _leaf_errors() if f"`{name}`" not in OPERATIONS}
    assert not missing


def _places(text: str) -> list[str]:
    """Every file of Python and every folder that a text names."""
    return re.findall(r"`((?:\w+/)+(?:\w+\.py)?|\w+\.py)`", text)


def _does_not_exist(places: list[str]) -> list[str]:
    """A place is named from our source or the repository, or from the folder that was named before it."""
    missing, before = [], SOURCE
    for place in places:
        found = [base / place for base in (SOURCE, ROOT, before, before.parent) if (base / place).exists()]
        if not found:
            missing.append(place)
        else:
            before = found[0] if found[0].is_dir() else found[0].parent
    return missing


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_every_file_and_folder_that_is_named_exists(page: str) -> None:
    places = _places((ROOT / page).read_text())
    assert len(places) > 10
    assert _does_not_exist(places) == []


@pytest.mark.parametrize(
    ("begins", "most"), [("**One INSERT, from the socket", 15), ("**The same INSERT, into", 22)]
)
def test_a_change_passes_through_few_files(begins: str, most: int) -> None:
    path = ARCHITECTURE.partition(begins)[2].partition("\n\n")[0]
    files = _places(path)
    assert all((SOURCE / file).is_file() for file in files), "by their whole names"
    assert len(files) == len(set(files)) <= most
    assert path.endswith(f"{len(files)} files.")


@pytest.mark.parametrize("door", DOORS)
def test_a_door_is_where_the_page_says(door: str) -> None:
    rows = [line.split("|") for line in ARCHITECTURE.splitlines() if line.startswith("| `")]
    [file] = [file for row in rows if f"`{door}`" in row[1] for file in _places(row[2])]
    assert re.search(rf"^class {door}\(", (SOURCE / file).read_text(), re.MULTILINE)


def test_the_bounds_of_a_marked_query_are_those_of_the_code() -> None:
    assert f"at most {MOST_STEPS:,} manifests" in SPARK
    assert f"as soon as {MOST_HELD:,} that lie behind it have" in SPARK

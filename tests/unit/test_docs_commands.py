"""Every command, variable and example in docs/ and README is held against the code."""

from __future__ import annotations

import ast
import importlib
import json
import re
import tomllib
from pathlib import Path

import pytest

from penstock.settings.services import CaptureSettings, ShapesSettings
from penstock.shapes.definition.shapes_file import load_shapes_file
from tests.markdown_pages import PAGES, fences, words_in_code
from tests.shell_commands import complaint, mention_complaint, simple_commands
from tests.yaml_text import yaml_complaint

NOT_OURS = {"JAVA_HOME", "NO_COLOR", "PYSPARK_PYTHON", "SPARK", "SPARK_HOME", "SPARK_LOCAL_DIRS"}
OF_MAKE = {"BASE", "PENSTOCK_LONG_TESTS", "SOAK_MINUTES"}
NO_VARIABLES = {"AT_TIMESTAMP", "TRIM_HORIZON", "USER_PARTITION_KEY"}
"""Words that look like variables."""
CHECKED = {"", "console", "hcl", "json", "python", "sql", "toml", "yaml"}
"""Languages of blocks. SQL is checked by tests/integration/test_docs_sql.py, HCL in tests/deploy/."""
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def _settings() -> set[str]:
    return {
        str(field.validation_alias)
        for service in (CaptureSettings, ShapesSettings)
        for group in service.model_fields.values()
        for field in group.annotation.model_fields.values()  # type: ignore[union-attr]
    }


def _unknown(variables: list[str]) -> list[str]:
    """Those that nobody reads; a name in small letters is the shell's own."""
    known = _settings() | NOT_OURS | OF_MAKE | NO_VARIABLES
    return [
        name
        for name in variables
        if name.isupper() and name not in known and not name.startswith(("PG", "AWS_"))
    ]


@every_page
def test_commands_can_be_typed_as_they_stand(page: Path) -> None:
    lines = [line for fence in fences(page.read_text(), "console") for line in fence.commands()]
    commands = [command for line in lines for command in simple_commands(line)]
    wrong = [(command.words, found) for command in commands if (found := complaint(command)) is not None]
    assert wrong == []
    assert _unknown([name for command in commands for name in command.variables]) == []


@every_page
def test_a_block_for_a_terminal_shows_what_is_typed(page: Path) -> None:
    text = page.read_text()
    assert fences(text, "sh", "bash", "shell") == [], "use `console`, with `$ ` before what is typed"
    assert [fence.text for fence in fences(text, "console") if not fence.commands()] == []


@every_page
def test_commands_in_sentences_exist(page: Path) -> None:
    text = page.read_text()
    synopses = [re.sub(r"[\[\]]", "", line) for fence in fences(text, "") for line in fence.text.splitlines()]
    mentions = [word for word in words_in_code(text) + synopses if re.match(r"(penstock|make) [a-z-]", word)]
    wrong = [(mention, found) for mention in mentions if (found := mention_complaint(mention)) is not None]
    assert wrong == []


@every_page
def test_variables_in_sentences_exist(page: Path) -> None:
    words = [
        re.fullmatch(r"([A-Z][A-Z0-9]*_[A-Z0-9_]+)(=.*)?", word) for word in words_in_code(page.read_text())
    ]
    assert _unknown([word[1] for word in words if word is not None]) == []


@every_page
def test_examples_in_python_compile_and_import_what_exists(page: Path) -> None:
    for fence in fences(page.read_text(), "python"):
        for node in ast.walk(ast.parse(fence.text)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("penstock"):
                module = importlib.import_module(str(node.module))
                assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name.startswith("penstock"):
                        importlib.import_module(alias.name)


@every_page
def test_examples_of_shapes_files_and_json_are_good(page: Path, tmp_path: Path) -> None:
    for fence in fences(page.read_text(), "json"):
        json.loads(fence.text)
    for fence in fences(page.read_text(), "toml"):
        if "[[shape]]" in fence.text:
            file = tmp_path / "shapes.toml"
            file.write_text(fence.text)
            assert load_shapes_file(file).shapes
        else:
            tomllib.loads(fence.text)


@every_page
def test_every_block_is_in_a_language_that_is_checked(page: Path) -> None:
    assert {fence.language for fence in fences(page.read_text())} <= CHECKED


@every_page
def test_examples_of_yaml_can_be_read(page: Path) -> None:
    assert [said for fence in fences(page.read_text(), "yaml") if (said := yaml_complaint(fence.text))] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a: 1\nb: [1, 2]\n---\nc: {d: e}\n", None),
        ("a: 1\n b: 2\n", "line 2"),
        ("a: [1\n", "line 2"),
        ("a: 1\na: 2\n", "'a' stands there twice"),
        ("- b:\n    c: 1\n    c: 1\n", "'c' stands there twice"),
        ("just words\n", "neither a mapping nor a list"),
        ("", "neither a mapping nor a list"),
    ],
)
def test_what_is_seen_in_yaml(text: str, found: str | None) -> None:
    said = yaml_complaint(text)
    assert said is None if found is None else said is not None and found in said


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("penstock capture  # twice", None),
        ("penstock shapes --config shapes.toml --once", None),
        ("penstock shapes --once", "--config"),
        ("penstock captures", "captures"),
        ("make demo && make dinner", "dinner"),
        ("pip install '.[spark,demo]'", None),
        ("pip install 'penstock[sparks]'", "sparks"),
        ("python -m penstock.lake.spark.jars", None),
        ("python -m penstock.lake.spark.jugs", "jugs"),
        ("git clone somewhere | cat docs/index.md > copy", None),
        ("cat docs/nothing.md", "docs/nothing.md"),
        ("frobnicate --all", "teach"),
    ],
)
def test_what_the_tests_above_can_see(line: str, found: str | None) -> None:
    complaints = [said for each in simple_commands(line) if (said := complaint(each)) is not None]
    assert complaints == [] if found is None else found in "".join(complaints)


@pytest.mark.parametrize(
    ("mention", "found"),
    [
        ("penstock shapes --once", None),
        ("penstock shapes --twice", "--twice"),
        ("penstock bench kettle", "kettle"),
        ("make tea", "tea"),
    ],
)
def test_what_they_can_see_in_sentences(mention: str, found: str | None) -> None:
    said = mention_complaint(mention)
    assert said is None if found is None else said is not None and found in said

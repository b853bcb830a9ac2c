"""Links and anchors of docs/ and README lead somewhere; tests that pages name exist; no page has a hole.

Links to elsewhere are not followed: no test leaves the machine.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.markdown_pages import DOCS, PAGES, ROOT, anchors, links

NAMED_TEST = re.compile(r"tests/[\w/]+\.py(?:::\w+)*")
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@every_page
def test_links_and_anchors_lead_somewhere(page: Path) -> None:
    wrong = []
    for link in links(page.read_text()):
        path, _, anchor = unquote(link).partition("#")
        if "://" in link or link.startswith("mailto:"):
            continue
        target = (page.parent / path).resolve() if path else page
        there = target.exists() and target.is_relative_to(ROOT)
        if not there or (anchor and anchor not in anchors(target.read_text())):
            wrong.append(link)
    assert wrong == []


def _holes(text: str) -> list[str]:
    return re.findall(r"^[ >|*-]*(?:TABLE|TODO|TBD|FIXME|XXX)\b[ .:|…]*$", text, re.MULTILINE)


@every_page
def test_no_page_has_a_placeholder_for_something_that_never_came(page: Path) -> None:
    assert _holes(page.read_text()) == []


def test_what_is_a_placeholder() -> None:
    for hole in ("TABLE", "TODO", "  TODO:", "- TODO", "| TBD |", "> FIXME …"):
        assert _holes(f"# A page\n\n{hole}\n\nmore\n") == [hole]
    assert _holes("TABLE names are kept\nALTER TABLE\n`TODO`\n") == []


def _exists(test: str) -> bool:
    file, *names = test.split("::")
    if not (ROOT / file).is_file():
        return False
    text = (ROOT / file).read_text()
    return all(re.search(rf"^ *(async def|def|class) {name}\b", text, re.MULTILINE) for name in names)


@every_page
def test_tests_that_a_page_names_exist(page: Path) -> None:
    assert [test for test in NAMED_TEST.findall(page.read_text()) if not _exists(test)] == []


def test_each_row_of_the_failure_matrix_names_a_test() -> None:
    rows = [line for line in (DOCS / "failures.md").read_text().splitlines() if line.startswith("|")]
    body = [row for row in rows if not re.match(r"\|( what fails |-)", row)]
    assert len(body) > 30
    assert [row for row in body if not re.search(r"tests/[\w/]+\.py::test_\w+", row.split("|")[-2])] == []


def test_what_the_tests_above_can_see() -> None:
    text = "# A `b(c)`, d\n## Two\n## Two\n[`x`](y.md#z) ![p](q.svg) `[no](link)`\n```\n# no heading\n```\n"
    assert anchors(text) == {"a-bc-d", "two", "two-1"}
    assert links(text) == ["y.md#z", "q.svg"]
    assert _exists("tests/unit/test_docs_links.py::test_what_the_tests_above_can_see")
    assert not _exists("tests/unit/test_docs_links.py::test_of_nothing")

"""The site: every page is in it, it builds without a warning, and it loads nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.markdown_pages import DOCS, ROOT

LOADED = re.compile(
    r"<(?:script|img|iframe|source|video|audio|embed|object)[^>]*\s(?:src|srcset|data)=\"?([^\s\">]+)"
    r"|<link(?![^>]*rel=\"?(?:canonical|next|prev))[^>]*\shref=\"?([^\s\">]+)"
)
LOADED_BY_STYLE = re.compile(r"@import[^;]+|url\(([^)]+)\)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as CI and `make docs` build it."""
    place = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", place],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return place


def test_every_page_is_in_the_nav() -> None:
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    named = re.findall(r": ([\w-]+\.md)$", nav, re.MULTILINE)
    missing = {page.name for page in DOCS.glob("*.md")} - set(named)
    assert not missing, f"put into the nav of mkdocs.yml: {', '.join(sorted(missing))}"
    assert len(named) == len(set(named))


def test_it_loads_nothing_from_elsewhere(site: Path) -> None:
    loaded = [
        (file.name, address)
        for file in site.rglob("*.html")
        for match in LOADED.finditer(file.read_text())
        for address in match.groups()
        if address is not None and re.match(r"\w+:|//", address) and not address.startswith("data:")
    ]
    styles = [
        (file.name, found[0])
        for file in site.rglob("*.css")
        for found in LOADED_BY_STYLE.finditer(file.read_text())
        if re.search(r"https?:|//", found[0]) and "data:" not in found[0]
    ]
    assert loaded + styles == []


def test_pages_are_read_as_on_github(site: Path) -> None:
    for page in DOCS.glob("*.md"):
        html = (site / f"{page.stem}.html").read_text()
        article = html.partition("<article")[2].partition("</article>")[0]
        assert article.count("<pre>") == len(re.findall(r"^ *```\w*", page.read_text(), re.MULTILINE)) / 2
        assert re.findall(r"<p>(?:- |\* |\d+\. |\|)[^<]{0,60}", article) == [], page.name


def test_what_the_tests_above_can_see() -> None:
    text = '<script src="https://a/b.js"><link rel="stylesheet" href=//c/d.css><link rel="next" href="https://e">'
    assert ["".join(filter(None, match.groups())) for match in LOADED.finditer(text)] == [
        "https://a/b.js",
        "//c/d.css",
    ]

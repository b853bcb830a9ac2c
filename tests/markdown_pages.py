"""What a Markdown page holds: fences, words in code, headings, links. For the tests of docs/ and README."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
_FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(`+)(.+?)\1", re.DOTALL)
_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")
_IMAGE = re.compile(r'<(?:img|source)[^>]*\s(?:src|srcset)="([^"]+)"')
_HEADING = re.compile(r"^#{1,6} +(.+?)#*$", re.MULTILINE)


class Fence(NamedTuple):
    """A block of code."""

    language: str
    text: str

    def commands(self) -> list[str]:
        """What is typed behind each prompt; a line that ends with a backslash goes on."""
        joined = self.text.replace("\\\n", " ")
        return [line.strip()[2:] for line in joined.splitlines() if line.strip().startswith("$ ")]


def fences(text: str, *languages: str) -> list[Fence]:
    """The blocks of code in these languages ("" for those without one); all, if none is named."""
    found = [
        Fence(language, re.sub(rf"^{indent}", "", body, flags=re.MULTILINE))
        for indent, language, body in _FENCE.findall(text)
    ]
    return [each for each in found if not languages or each.language in languages]


def words_in_code(text: str) -> list[str]:
    """What stands between backticks within sentences and tables."""
    return [" ".join(code.split()) for _, code in _CODE.findall(_FENCE.sub("", text))]


def links(text: str) -> list[str]:
    """Where the page's links and images lead, as they are written."""
    prose = _CODE.sub("code", _FENCE.sub("", text))
    return _LINK.findall(prose) + _IMAGE.findall(prose)


def anchors(text: str) -> set[str]:
    """The headings' names in links, as GitHub makes them."""
    found: dict[str, int] = {}
    for heading in _HEADING.findall(_FENCE.sub("", text)):
        name = re.sub(r"[^\w\- ]", "", _plain(heading).lower()).replace(" ", "-")
        count = found[name] = found.get(name, -1) + 1
        if count:
            found[f"{name}-{count}"] = 0
    return set(found)


def _plain(heading: str) -> str:
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip()

"""What the site needs beyond mkdocs.yml: pages are written for GitHub first, and both must show the same.

MkDocs calls these functions by their names.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

from markdown import Markdown
from markdown.extensions import Extension

REPOSITORY = "https://github.com/penstock/penstock/blob/main/"
_LINK = re.compile(r"(?<=\]\()(\.\./[^)\s]+)(?=\))")


class GithubLists(Extension):  # type: ignore[misc]  # Markdown has no types
    """Lists nest by two blanks, as on GitHub; Python's Markdown wants four."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Build the parser of blocks afresh: its parts have read the length when they were made."""
        md.tab_length = 2
        md.build_parser()


def on_config(config: Any) -> Any:
    """Read lists as GitHub does."""
    # First of all: the others add their parts to the parser that this one makes.
    config.markdown_extensions.insert(0, GithubLists())
    return config


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Links to files outside of docs/ go to the repository."""
    folder = posixpath.dirname(posixpath.join("docs", page.file.src_uri))

    def outside(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[1]))
        return link[1] if target.startswith("docs/") else REPOSITORY + target

    return _LINK.sub(outside, markdown)

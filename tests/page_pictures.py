"""Pictures of the page for the docs: `make pictures`.

They show made-up services, so that each of them has something to tell.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.servers.browser import Browser
from tests.servers.page_stage import PageStage

IMAGES = Path(__file__).parents[1] / "docs" / "images"


class _Picture(NamedTuple):
    name: str
    scheme: str
    width: int
    height: int
    shapes: int = 0


PICTURES = (
    _Picture("page-light", "light", 1160, 850),
    _Picture("page-dark", "dark", 1160, 900, shapes=6),
    _Picture("page-narrow", "light", 400, 1300, shapes=4),
)


def take(picture: _Picture, browser: Browser, directory: Path) -> Path:
    """One picture; returns its file."""
    path = directory / f"{picture.name}.png"
    with PageStage(shapes=picture.shapes, failing=picture.shapes > 0) as stage:
        browser.prefer(picture.scheme)
        browser.open(stage.url, width=picture.width, height=picture.height)
        browser.wait_for("#headline", "streaming, ready")
        browser.wait_for("figcaption", "WAL that the slot keeps")
        browser.picture(path)
    return path


def main() -> None:
    """All of them."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as profile, Browser(Path(profile)) as browser:
        for picture in PICTURES:
            path = take(picture, browser, IMAGES)
            print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()

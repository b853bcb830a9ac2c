from __future__ import annotations

import pytest

from penstock.model.size import format_size


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 kB"), (64 << 20, "64.0 MB"), (3 << 40, "3.0 TB")],
)
def test_sizes(count: int, text: str) -> None:
    assert format_size(count) == text

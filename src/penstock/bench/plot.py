"""A line plot as SVG: one series, from zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_WIDTH: Final = 640
_HEIGHT: Final = 260
_LEFT: Final = 60
_BOTTOM: Final = 40
_TOP: Final = 15


def line_plot(points: Sequence[tuple[float, float]], *, x_label: str, y_label: str) -> str:
    """An SVG document with the points as a line; both axes start at zero."""
    x_max = max(x for x, _ in points) or 1.0
    y_max = 1.2 * max(y for _, y in points) or 1.0
    inner_width, inner_height = _WIDTH - _LEFT - 15, _HEIGHT - _BOTTOM - _TOP

    def place(x: float, y: float) -> tuple[float, float]:
        return _LEFT + x / x_max * inner_width, _TOP + (1 - y / y_max) * inner_height

    line = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in points)
    x_zero, y_zero = place(0, 0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<polyline points="{x_zero},{_TOP} {x_zero},{y_zero} {_WIDTH - 15},{y_zero}"'
        ' fill="none" stroke="#888"/>',
        f'<polyline points="{line}" fill="none" stroke="#06c" stroke-width="1.5"/>',
        f'<text x="{_LEFT - 8}" y="{y_zero}" text-anchor="end">0</text>',
        f'<text x="{_LEFT - 8}" y="{_TOP + 10}" text-anchor="end">{y_max:.0f}</text>',
        f'<text x="{_WIDTH - 15}" y="{y_zero + 18}" text-anchor="end">{x_max:.1f} {x_label}</text>',
        f'<text x="{_LEFT + 8}" y="{_TOP + 10}">{y_label}</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"

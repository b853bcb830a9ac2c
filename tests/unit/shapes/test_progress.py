"""What a person sees of the shapes: a table on a terminal, lines in a log."""

from __future__ import annotations

import asyncio
from io import StringIO

import pytest
from rich.console import Console
from structlog.testing import capture_logs

from penstock.model.log_offset import LogOffset
from penstock.shapes import progress
from penstock.shapes.pace.shape_plan import ShapeState, ShapeStatus
from penstock.shapes.progress import LoggedProgress, table_of
from penstock.shapes.readings import ShapeLine
from penstock.status.health import Phase

FIX = (
    "where needs REPLICA IDENTITY FULL on public.orders. Fix: ALTER TABLE public.orders REPLICA IDENTITY FULL"
)
IDLE = ShapeLine(ShapeStatus("orders", ShapeState.IDLE, LogOffset(0x16B374D848, 2), 0, None), 1_234_567, 0)
BEHIND = ShapeLine(
    ShapeStatus("lines", ShapeState.BACKING_OFF, LogOffset(-1, 0), 4096, FIX, pending_s=12.34), 0, 98_765
)

WAITS = ShapeLine(
    ShapeStatus("held", ShapeState.SNAPSHOTTING, LogOffset(-1, 0), 0, None, waits_for="it waits for pid 7"),
    0,
    9,
)


def test_a_line_a_shape_with_what_holds_it() -> None:
    console = Console(width=220, record=True, file=StringIO())
    console.print(table_of([IDLE, BEHIND, WAITS], Phase.STREAMING))
    title, *lines = [line for line in console.export_text().splitlines() if any(map(str.isalnum, line))]

    assert "streaming" in title
    header, idle, behind, waits = (
        [cell.strip() for cell in line.strip("│┃ ").replace("┃", "│").split("│")] for line in lines
    )
    assert header == ["shape", "state", "rows", "offset", "behind", "note"]
    assert idle[:5] == ["orders", "idle", "1,234,567", "16/B374D848", "-"]
    assert behind == ["lines", "backing off", "0", "-", "98,765 B, 12.3 s", FIX]
    assert waits == ["held", "snapshotting", "0", "-", "9 B, 0.0 s", "it waits for pid 7"]


async def test_the_log_has_a_line_for_each_shape_that_has_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_LOG_EVERY_S", 0.001)
    looks, enough = 0, asyncio.Event()

    def lines(_: float) -> list[ShapeLine]:
        nonlocal looks
        looks += 1
        if looks == 6:
            enough.set()
        return [IDLE, BEHIND if looks < 3 else BEHIND._replace(rows=7)]

    with capture_logs() as said:
        showing = asyncio.create_task(LoggedProgress().run(lines, lambda: Phase.STREAMING))
        await enough.wait()
        showing.cancel()

    assert [(line["shape"], line["rows"]) for line in said] == [
        ("orders", 1_234_567),
        ("lines", 0),
        ("lines", 7),
    ]
    assert (said[1]["lsn"], said[1]["lag_bytes"], said[1]["state"]) == ("-", 98_765, "backing off")

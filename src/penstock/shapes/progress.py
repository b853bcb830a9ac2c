"""Progress that a person can watch: a line a shape, on a terminal; elsewhere a log line now and then."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

import structlog
from rich.console import Console
from rich.live import Live
from rich.table import Table

from penstock.model.lsn import format_lsn
from penstock.shapes.pace.shape_plan import ShapeState
from penstock.shapes.readings import ShapeLine
from penstock.status.health import Phase

_DRAW_EVERY_S: Final = 0.5
_LOG_EVERY_S: Final = 10.0
_LONGEST_ERROR: Final = 500
_STYLES: Final = {ShapeState.BACKING_OFF: "red", ShapeState.STOPPED: "red", ShapeState.SNAPSHOTTING: "yellow"}

_log = structlog.get_logger()

Lines = Callable[[float], list[ShapeLine]]


class ProgressView(Protocol):
    """Shows what the shapes do until it is cancelled."""

    async def run(self, lines: Lines, phase: Callable[[], Phase]) -> None:
        """`lines` are those of the moment; none while this process doesn't lead."""


class LiveProgress:
    """A table that is drawn again and again."""

    def __init__(self, live: Live) -> None:
        self._live = live

    async def run(self, lines: Lines, phase: Callable[[], Phase]) -> None:
        """See ProgressView."""
        while True:
            self._live.update(table_of(lines(time.monotonic()), phase()), refresh=True)
            await asyncio.sleep(_DRAW_EVERY_S)


class LoggedProgress:
    """A log line for each shape that has moved."""

    async def run(self, lines: Lines, phase: Callable[[], Phase]) -> None:
        """See ProgressView."""
        said: dict[str, tuple[object, ...]] = {}
        while True:
            await asyncio.sleep(_LOG_EVERY_S)
            for line in lines(time.monotonic()):
                status = line.status
                news = (status.offset, line.rows, status.state, status.waits_for is None)
                if said.get(status.shape) == news:
                    continue
                said[status.shape] = news
                _log.info(
                    "progress",
                    shape=status.shape,
                    state=status.state.value,
                    rows=line.rows,
                    lsn=_lsn(line),
                    lag_bytes=line.lag_bytes,
                    lag_s=round(status.pending_s, 1),
                    **({"waits_for": status.waits_for} if status.waits_for else {}),
                )


@contextmanager
def open_progress() -> Iterator[ProgressView]:
    """A live table if somebody watches."""
    if not sys.stdout.isatty():
        yield LoggedProgress()
        return
    with Live(console=Console(), auto_refresh=False) as live:
        yield LiveProgress(live)


def table_of(lines: list[ShapeLine], phase: Phase) -> Table:
    """What is drawn."""
    table = Table(title=f"penstock shapes: {phase}", title_justify="left", expand=False)
    for name, justify in (("shape", "left"), ("state", "left"), ("rows", "right"), ("offset", "right")):
        table.add_column(name, justify="left" if justify == "left" else "right")
    table.add_column("behind", justify="right")
    table.add_column("note", overflow="fold")
    for line in lines:
        status = line.status
        table.add_row(
            status.shape,
            status.state.value,
            f"{line.rows:,}",
            _lsn(line),
            f"{line.lag_bytes:,} B, {status.pending_s:.1f} s" if line.lag_bytes else "-",
            (status.waits_for or status.error or "")[:_LONGEST_ERROR],
            style=_STYLES.get(status.state),
        )
    return table


def _lsn(line: ShapeLine) -> str:
    held_lsn = line.status.offset.tx_offset
    return "-" if held_lsn < 0 else format_lsn(held_lsn)

"""The demo on a terminal: a live screen, and a panel at the end."""

from __future__ import annotations

import time
from typing import Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from penstock.demo import result
from penstock.demo.demo_outcome import DemoOutcome
from penstock.demo.story import Readings, Step, StepState, Story
from penstock.model.size import format_size

_SPINNER: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_ROLE_STYLES: Final = {"leader": "bold green", "standby": "cyan", "killed": "bold red"}
_WIDEST: Final = 90
_LAST_COLUMN: Final = 10


class Screen:
    """Draws the story while its `with` block lasts; the last picture stays."""

    def __init__(self, story: Story, console: Console) -> None:
        self._console = console
        self._live = Live(
            get_renderable=lambda: picture(story, time.monotonic(), console.width),
            console=console,
            refresh_per_second=8,
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._live.stop()

    def show(self, outcome: DemoOutcome) -> None:
        """The final panel."""
        self._console.print(_panel(outcome, min(self._console.width, _WIDEST)))


def picture(story: Story, now: float, width: int) -> RenderableType:
    """The whole screen at one moment."""
    parts: list[RenderableType] = [Text(story.title, style="bold"), _steps(story, now, min(width, _WIDEST))]
    if story.readings is not None:
        parts += [_processes(story.readings), _rates(story.readings)]
    return Group(*parts, "")


def _steps(story: Story, now: float, width: int) -> Table:
    # Of fixed width: the columns must not jump about while titles come and go.
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=1)
    grid.add_column(width=width - _LAST_COLUMN - 3)
    grid.add_column(width=_LAST_COLUMN, justify="right")
    for step in list(story.steps):
        grid.add_row(
            _tick(step, now), Text(step.title, style="bold" if step.loud else ""), _duration(step, now)
        )
    return grid


def _tick(step: Step, now: float) -> Text:
    if step.state is StepState.DONE:
        return Text("✓", style="bold green")
    if step.state is StepState.FAILED:
        return Text("✗", style="bold red")
    return Text(_SPINNER[int(now * 10) % len(_SPINNER)], style="yellow")


def _duration(step: Step, now: float) -> RenderableType:
    elapsed = step.elapsed_s(now)
    if step.state is StepState.RUNNING and step.planned_s is not None:
        return ProgressBar(
            total=step.planned_s,
            completed=min(elapsed, step.planned_s),
            width=_LAST_COLUMN,
            complete_style="yellow",
        )
    return Text(f"{elapsed:.1f} s", style="dim")


def _processes(readings: Readings) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("process", "pid", "role", "phase"):
        table.add_column(heading)
    for heading in ("done", "slot lag"):
        table.add_column(heading, justify="right", min_width=9)
    for process in readings.processes:
        table.add_row(
            process.name,
            str(process.pid),
            Text(process.role, style=_ROLE_STYLES.get(process.role, "")),
            process.phase,
            f"{process.done:,}",
            "" if process.lag_bytes is None else format_size(process.lag_bytes),
        )
    return Padding(table, (1, 0, 0, 2))


def _rates(readings: Readings) -> RenderableType:
    text = Text.assemble(
        (f"{readings.commits_per_s:,.0f}", "bold"), " commits/s in Postgres   ",
        (f"{readings.records_per_s:,.0f}", "bold"), " records/s in Kinesis   ",
        (f"{readings.rows_per_s:,.0f}", "bold"), " rows/s in the lake",
    )  # fmt: skip
    return Padding(text, (1, 0, 0, 2))


def _panel(outcome: DemoOutcome, width: int) -> Panel:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(style="dim")
    for line in result.lines(outcome):
        grid.add_row(
            line.label, Text(line.value, style="bold green" if line.good else "bold red"), line.remark
        )
    colour = "green" if outcome.holds else "red"
    return Panel(
        Group(grid, "", *map(Text, result.last_words(outcome))),
        title=Text(result.headline(outcome), style=f"bold {colour}"),
        border_style=colour,
        padding=(1, 2),
        width=width,
    )

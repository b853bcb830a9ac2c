"""The demo in a pipe: plain lines, one for each step that ends, else one a second that tells how it goes."""

from __future__ import annotations

import threading
import time
from typing import Final, Self

from penstock.demo import result
from penstock.demo.demo_outcome import DemoOutcome
from penstock.demo.story import ProcessReading, Readings, StepState, Story
from penstock.model.size import format_size

_INTERVAL_S: Final = 1.0


class PlainLines:
    """Prints the story while its `with` block lasts."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._told: set[int] = set()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="plain lines", daemon=True)

    def __enter__(self) -> Self:
        print(self._story.title, flush=True)
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._end.set()
        self._thread.join()
        self._tell()

    def show(self, outcome: DemoOutcome) -> None:
        """The final counts."""
        print(result.headline(outcome))
        for line in result.lines(outcome):
            print(f"  {line.label:<11} {line.value:>8}  {line.remark}")
        print(*result.last_words(outcome), sep="\n", flush=True)

    def _run(self) -> None:
        while not self._end.wait(_INTERVAL_S):
            if not self._tell() and self._story.readings is not None:
                self._print(time.monotonic(), "..", _status(self._story.readings))

    def _tell(self) -> bool:
        """Print the steps that have ended since the last time; gives whether there were any."""
        ended = [step for step in self._story.steps if step.ended is not None and id(step) not in self._told]
        for step in ended:
            self._told.add(id(step))
            mark = "ok" if step.state is StepState.DONE else "no"
            self._print(step.ended or 0.0, mark, step.title)
        return bool(ended)

    def _print(self, moment: float, mark: str, text: str) -> None:
        print(f"{moment - self._story.began:6.1f} s  {mark}  {text}", flush=True)


def _status(readings: Readings) -> str:
    processes = "; ".join(map(_process, readings.processes))
    return (
        f"{processes}; {readings.commits_per_s:,.0f} commits/s,"
        f" {readings.records_per_s:,.0f} records/s, {readings.rows_per_s:,.0f} rows/s"
    )


def _process(process: ProcessReading) -> str:
    lag = "" if process.lag_bytes is None else f", lag {format_size(process.lag_bytes)}"
    return f"{process.name} {process.role} ({process.phase}) {process.done:,}{lag}"

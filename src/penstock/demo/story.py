"""The story of a demo, as it is told: its steps, and the latest readings. Views draw it; others write it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class StepState(Enum):
    """How far a step is. Set by `Story.step` alone."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(slots=True)
class Step:
    """One thing that happens."""

    title: str
    began: float
    state: StepState = StepState.RUNNING
    ended: float | None = None
    planned_s: float | None = None
    """How long it is meant to last, if that is known: its progress can be shown."""
    loud: bool = False
    """One of the moments that the demo is about."""

    def elapsed_s(self, now: float) -> float:
        """How long it has lasted."""
        return (self.ended or now) - self.began


class ProcessReading(NamedTuple):
    """A process at one moment."""

    name: str
    pid: int
    role: str
    phase: str
    done: int
    """Records published, or rows applied."""
    lag_bytes: int | None
    """WAL between its slot's confirmed position and the server's, if it leads."""


class Readings(NamedTuple):
    """Everything that is measured, at one moment."""

    processes: list[ProcessReading]
    commits_per_s: float
    records_per_s: float
    """To Kinesis."""
    rows_per_s: float
    """To the lake."""


@dataclass
class Story:
    """What has happened so far."""

    title: str
    began: float = field(default_factory=time.monotonic)
    steps: list[Step] = field(default_factory=list)
    readings: Readings | None = None

    @contextmanager
    def step(self, title: str, *, planned_s: float | None = None, loud: bool = False) -> Iterator[Step]:
        """Something is going on: done at the end of the block, failed if that raises."""
        step = Step(title, time.monotonic(), planned_s=planned_s, loud=loud)
        self.steps.append(step)
        try:
            yield step
        except BaseException:
            step.state = StepState.FAILED
            raise
        else:
            step.state = StepState.DONE
        finally:
            step.ended = time.monotonic()


class Rate:
    """How fast a counter grows, over the last few seconds. Time is an argument."""

    def __init__(self, window_s: float = 3.0) -> None:
        self._window_s = window_s
        self._seen: deque[tuple[float, int]] = deque()

    def per_s(self, count: int, now: float) -> float:
        """Take the counter's value now; gives the rate."""
        self._seen.append((now, count))
        while self._seen[-1][0] - self._seen[0][0] > self._window_s:
            self._seen.popleft()
        then, before = self._seen[0]
        return (count - before) / (now - then) if now > then else 0.0

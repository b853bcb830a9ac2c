"""LeaderCycle: compete, lead, stand by, try again. Nothing but a signal ends it."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import structlog

from penstock.errors import PenstockError, PostgresError
from penstock.ops.health import Fault, Health, Phase
from penstock.postgres.leader_line import AnotherLeads
from penstock.retry_policy import SLOW_RETRY_S, Pace, policy_for

_FIRST_RETRY_S: Final = 0.25
_SAY_AGAIN_S: Final = 30.0

_log = structlog.get_logger()


class Leadership(Protocol):
    """One attempt to lead. Used once."""

    has_led: bool

    async def run(self) -> AnotherLeads | None:
        """Lead until stopped (None) or until an error; at once if another leads."""


class LeaderCycle:
    """What the outer loops of `capture` and `shapes` have in common."""

    def __init__(self, health: Health, *, standby_retry_interval_s: float) -> None:
        self._health = health
        self._standby_retry_interval_s = standby_retry_interval_s
        self._failures = 0
        self._said: tuple[str, float] = ("", 0.0)
        self.stop = asyncio.Event()
        """Set by SIGTERM and SIGINT."""

    def listen(self) -> None:
        """Let signals set `stop`."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop.set)

    async def attempt(self, leadership: Leadership) -> AnotherLeads | None:
        """Lead once. A stop that comes before streaming has nothing to drain: it cancels."""
        task = asyncio.create_task(leadership.run(), name="leadership")
        stopped = asyncio.create_task(self.stop.wait(), name="stop")
        await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        try:
            if not task.done() and self._health.phase not in (Phase.STREAMING, Phase.DRAINING):
                task.cancel()
                await asyncio.wait([task])
                return None
            outcome = await task
        finally:
            if leadership.has_led:
                self._failures = 0
        self._failures = 0
        return outcome

    async def stand_by(self, another: AnotherLeads) -> None:
        """Another leads: say who, and wait a while."""
        self._health.enter(Phase.STANDBY)
        self._health.clear_leadership_faults()
        self._health.clear_fault(Fault.STREAM)
        self.say("info", "standby", f"{another.description} leads")
        await self.pause(self._standby_retry_interval_s)

    async def recover(
        self, error: Exception, *, wait_for_sink: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Say what ended a leadership, and wait as long as that error asks for."""
        policy = policy_for(error)
        self._failures += 1
        self._health.enter(Phase.WAITING)
        known = isinstance(error, PenstockError)
        if policy.pace is not Pace.WHEN_SINK_ANSWERS:
            self._health.clear_leadership_faults()
            fault = Fault.POSTGRES if isinstance(error, PostgresError) else Fault.SERVICE
            self._health.set_fault(fault, str(error) if known else type(error).__name__)
        self.say(policy.level, type(error).__name__, str(error), exc_info=None if known else error)
        match policy.pace:
            case Pace.SLOW:
                await self.pause(SLOW_RETRY_S)
            case Pace.WHEN_SINK_ANSWERS:
                # A sink may answer the probe and still refuse our records: give another the chance to lead.
                await self.pause(self._standby_retry_interval_s)
                if wait_for_sink is not None:
                    await wait_for_sink()
            case Pace.SOON:
                longest = self._standby_retry_interval_s
                await self.pause(min(longest, _FIRST_RETRY_S * 2.0 ** min(self._failures - 1, 10)))

    async def pause(self, seconds: float) -> None:
        """Wait, or until told to stop."""
        try:
            async with asyncio.timeout(seconds):
                await self.stop.wait()
        except TimeoutError:
            return

    def say(self, level: str, event: str, sentence: str, exc_info: Exception | None = None) -> None:
        """Log; the same sentence again and again is said once in a while."""
        now = time.monotonic()
        if self._said[0] == sentence and now - self._said[1] < _SAY_AGAIN_S:
            return
        self._said = (sentence, now)
        getattr(_log, level)(event, detail=sentence, **({"exc_info": exc_info} if exc_info else {}))

"""LeaderCycle: compete, lead, stand by, try again. Nothing but a signal ends it."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Protocol, TypeVar

import structlog

from penstock.errors import LockLingers, PenstockError, PostgresError
from penstock.model.lsn import format_lsn
from penstock.postgres.leader.line import AnotherLeads
from penstock.postgres.leader.lock import Session
from penstock.service.relapses import Relapse, Relapses
from penstock.service.retry_policy import QUICK_RETRY_S, SLOW_RETRY_S, Pace, policy_for
from penstock.status.health import Fault, Health, Phase

_FIRST_RETRY_S: Final = 0.25
_SAY_AGAIN_S: Final = 30.0

_Result = TypeVar("_Result")
Look = Callable[[], Coroutine[Any, Any, None]]
"""Raises what would keep a leader from the slot, as far as it shows without competing."""

_log = structlog.get_logger()


class Leadership(Protocol):
    """One attempt to lead. Used once."""

    has_led: bool
    confirmed_lsn: int
    """The highest LSN confirmed to Postgres; 0 if there is none."""

    @property
    def held(self) -> Session | None:
        """The session that has taken the lock; None if none has."""

    async def run(self) -> AnotherLeads | None:
        """Lead until stopped (None) or until an error; at once if another leads."""


class LeaderCycle:
    """What the outer loops of `capture` and `shapes` have in common."""

    def __init__(self, health: Health, *, standby_retry_interval_s: float) -> None:
        self._health = health
        self._standby_retry_interval_s = standby_retry_interval_s
        self._relapses = Relapses()
        self._ended = (0, 0.0)
        """What the last attempt had confirmed, and how long it led."""
        self._held: Session | None = None
        """The last session of ours that had the lock."""
        self._unread_since: float | None = None
        self._said: tuple[str, float] = ("", 0.0)
        self.stop = asyncio.Event()
        """Set by SIGTERM and SIGINT."""

    def listen(self) -> None:
        """Let signals set `stop`."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop.set)

    async def attempt(self, leadership: Leadership) -> AnotherLeads | None:
        """Lead once. A stop that comes before streaming has nothing to drain: it cancels.

        LockLingers if it is a former session of ours that still has the lock: nobody leads then, and nothing
        that ailed this process is over.
        """
        began_at = time.monotonic()
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
            led_s = time.monotonic() - began_at if leadership.has_led else 0.0
            self._ended = (leadership.confirmed_lsn, led_s)
            self._held = leadership.held or self._held
        if outcome is not None and outcome.holder is not None and outcome.holder.session == self._held:
            raise LockLingers(
                f"our own former session, pid {outcome.holder.pid}, still holds the lock: the server has not"
                " noticed its end, and does so within LEADER_TIMEOUT_S"
            )
        if outcome is None:
            self._relapses.succeeded(confirmed_lsn=leadership.confirmed_lsn)
        else:
            self._relapses.stood_by(slot_lsn=outcome.confirmed_lsn)
        return outcome

    def forget_positions(self) -> None:
        """The server has another history: its LSNs can't be compared with those before."""
        self._relapses.forget_positions()
        self._health.forget_positions()

    async def stand_by(self, another: AnotherLeads) -> None:
        """Another leads: say who, and wait a while."""
        self._health.stand_by(another.description.rstrip(","))
        now = time.monotonic()
        if another.slot_is_read:
            self._unread_since = None
        elif self._unread_since is None:
            self._unread_since = now
        trouble = another.trouble(unread_s=0.0 if self._unread_since is None else now - self._unread_since)
        pause_s = self._standby_retry_interval_s
        if trouble is None:
            self._health.clear_fault(Fault.SLOT)
            self.say("info", "standby", f"{another.description} leads")
        else:
            self._health.set_fault(Fault.SLOT, trouble)
            self.say("error", "standby_in_vain", trouble)
            pause_s = min(pause_s, QUICK_RETRY_S)
        await self.pause(pause_s)

    async def recover(
        self,
        error: Exception,
        *,
        wait_for_sink: Callable[[], Awaitable[bool]] | None = None,
        look: Look | None = None,
    ) -> None:
        """Say what ended a leadership, and wait as long as that error asks for.

        `wait_for_sink` tells whether the sink answered at once.
        """
        policy = policy_for(error)
        confirmed_lsn, led_s = self._ended
        relapse = self._relapses.failed(error, confirmed_lsn=confirmed_lsn, led_s=led_s)
        self._ended = (0, 0.0)
        self._unread_since = None
        self._health.enter(Phase.WAITING)
        sentence = _sentence(error, relapse, confirmed_lsn)
        if policy.pace is Pace.WHEN_SINK_ANSWERS:
            self._health.set_fault(Fault.SINK, sentence)
        else:
            self._health.clear_leadership_faults()
            fault = Fault.POSTGRES if isinstance(error, PostgresError) else Fault.SERVICE
            self._health.set_fault(fault, sentence)
        if relapse.failures > 1 and led_s:
            self._health.doubt(
                f"{relapse.failures} leaderships in a row ended without headway, the last with: {sentence}",
                longest_s=relapse.longest_s,
            )
        known = isinstance(error, PenstockError)
        level = "error" if relapse.needs_a_person else policy.level
        self.say(level, type(error).__name__, sentence if known else str(error), None if known else error)
        match Pace.SLOW if relapse.needs_a_person else policy.pace:
            case Pace.SLOW:
                await self._pause_until_it_looks_otherwise(look)
            case Pace.WHEN_SINK_ANSWERS:
                if wait_for_sink is None or await wait_for_sink():
                    # It answers, and took nothing of ours: give another the chance to lead.
                    self._health.set_fault(Fault.SINK, sentence)
                    await self.pause(self._standby_retry_interval_s)
                    self._health.clear_fault(Fault.SINK)
            case Pace.SOON:
                longest = min(self._standby_retry_interval_s, QUICK_RETRY_S)
                await self.pause(min(longest, _FIRST_RETRY_S * 2.0 ** min(relapse.failures - 1, 10)))

    async def _pause_until_it_looks_otherwise(self, look: Look | None) -> None:
        """Wait until somebody has changed what a look can see, but not for longer than SLOW_RETRY_S.

        Trying itself would take the lock and, for shapes, prepare a lot; a look costs what a standby costs.
        """
        if look is None:
            await self.pause(SLOW_RETRY_S)
            return
        try_again_at = time.monotonic() + SLOW_RETRY_S
        first = await self._found_by(look)
        while (left_s := try_again_at - time.monotonic()) > 0 and not self.stop.is_set():
            await self.pause(min(QUICK_RETRY_S, left_s))
            if await self._found_by(look) != first:
                return

    async def _found_by(self, look: Look) -> str:
        """What a look finds, to be compared with what another finds."""
        try:
            await self.unless_stopped(look())
        except Exception as error:
            return str(error)
        return ""

    async def unless_stopped(self, work: Coroutine[Any, Any, _Result]) -> _Result | None:
        """Wait for something that may hang; None, and it is left behind, if a stop comes first."""
        task = asyncio.ensure_future(work)
        stopped = asyncio.create_task(self.stop.wait(), name="stop")
        try:
            await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
            return await task if task.done() else None
        finally:
            task.cancel()
            stopped.cancel()

    async def ends_in_time(self, serving: asyncio.Task[None], *, grace_s: float) -> bool:
        """Wait for the outer loop. Once a stop has come it has `grace_s`; false if it needs longer."""
        stopped = asyncio.create_task(self.stop.wait(), name="stop")
        await asyncio.wait([serving, stopped], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        await asyncio.wait([serving], timeout=grace_s)
        return serving.done()

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


def _sentence(error: Exception, relapse: Relapse, confirmed_lsn: int) -> str:
    """What people read. The text of an error that isn't ours may hold anything, so only its kind is said."""
    sentence = str(error) if isinstance(error, PenstockError) else type(error).__name__
    if not relapse.needs_a_person:
        return sentence
    return (
        f"{sentence}. This has ended {relapse.failures} leaderships in a row, always behind"
        f" {format_lsn(confirmed_lsn)}: it needs a person. Changes behind it wait; it is tried again every"
        f" {SLOW_RETRY_S:.0f} s"
    )

from __future__ import annotations

import asyncio
import time

from penstock.status.loop_probe import LoopProbe


class Notes:
    """What a probe noted; it counts as busy until it has noted `enough`."""

    def __init__(self, enough: int) -> None:
        self.late: list[float] = []
        self.done = asyncio.Event()
        self._enough = enough
        self.probe = LoopProbe(is_busy=lambda: len(self.late) < enough, note=self._note)

    def _note(self, late: float) -> None:
        self.late.append(late)
        if len(self.late) == self._enough:
            self.done.set()


async def test_a_loop_that_was_kept_from_running_is_late_by_that_time() -> None:
    notes = Notes(enough=1)
    notes.probe.start()
    time.sleep(0.1)  # noqa: ASYNC251 - this is what the probe is there for

    async with asyncio.timeout(5):
        await notes.done.wait()

    assert notes.late[0] >= 0.09


async def test_it_goes_on_while_there_is_work_and_can_start_again() -> None:
    notes = Notes(enough=3)
    notes.probe.start()
    notes.probe.start()

    async with asyncio.timeout(5):
        await notes.done.wait()
    assert len(notes.late) == 3

    notes.done.clear()
    notes.late.clear()
    notes.probe.start()
    async with asyncio.timeout(5):
        await notes.done.wait()
    assert all(late >= 0 for late in notes.late)


async def test_once_stopped_it_asks_for_nothing() -> None:
    stopped, after = Notes(enough=1), Notes(enough=2)
    stopped.probe.start()
    stopped.probe.stop()
    after.probe.start()

    async with asyncio.timeout(5):
        await after.done.wait()

    assert stopped.late == []

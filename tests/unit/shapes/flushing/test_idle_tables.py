from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from penstock.lake.errors import SparkGone, StorageFailed
from penstock.shapes.flushing.idle_tables import EVERY_S, IdleTables


class Looks:
    """Notes who was looked at; ends the run after some looks."""

    def __init__(self, most: int) -> None:
        self.seen: list[str] = []
        self.most = most
        self.at_once = 0
        self.done = asyncio.Event()

    async def look(self, shape: str) -> None:
        self.at_once += 1
        assert self.at_once == 1
        await asyncio.sleep(0)
        self.at_once -= 1
        self.seen.append(shape)
        if len(self.seen) == self.most:
            self.done.set()
        if shape == "fails":
            raise StorageFailed("no storage")
        if shape == "gone":
            raise SparkGone("no Java")


async def test_one_after_the_other_and_a_failure_holds_nobody() -> None:
    looks = Looks(5)
    idle = IdleTables(["a", "fails", "b"], looks.look, every_s=0.003)
    with capture_logs() as said:
        running = asyncio.create_task(idle.run())
        await asyncio.wait_for(looks.done.wait(), 10)
        running.cancel()
    assert looks.seen[:5] == ["a", "fails", "b", "a", "fails"]
    assert said[0]["event"] == "table_not_looked_at"


async def test_a_spark_that_is_gone_ends_it() -> None:
    with pytest.raises(SparkGone):
        await IdleTables(["gone"], Looks(1).look, every_s=0.001).run()


@pytest.mark.parametrize("count", [1, 300])
def test_many_tables_are_spread_over_the_time(count: int) -> None:
    idle = IdleTables(map(str, range(count)), Looks(1).look)
    assert idle._pause_s * count == pytest.approx(EVERY_S)


async def test_without_shapes_nothing_is_looked_at() -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(IdleTables([], Looks(1).look, every_s=0.001).run(), 0.05)

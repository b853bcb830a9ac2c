"""Shapes whose storage is a stream, compared with Postgres: each is a marked stream of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from penstock.errors import PenstockError
from penstock.lake.storages.stream_url import StreamUrl
from penstock.lake.stream.told import Told
from penstock.model.stream_position import StreamPosition
from penstock.shapes.verify.cuts import Passing, Say, ShapeCheck, VerifyCuts
from penstock.shapes.verify.stream_look import StreamLook
from penstock.shapes.verify.stream_reading import StreamReading

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class StreamShapes:
    """As `penstock verify --stream` has it, for some shapes under one snapshot.

    A shape says nothing while its table rests, so it is the slot that tells whether everything below the cut
    was published: it is confirmed only then.
    """

    def __init__(
        self, spark: SparkSession, url: StreamUrl, *, cuts: VerifyCuts, passing: Passing, say: Say
    ) -> None:
        self._spark = spark
        self._url = url
        self._cuts = cuts
        self._passing = passing
        self._say = say

    async def compare(
        self, checks: Sequence[ShapeCheck], system: str, here: StreamPosition, *, show_values: bool
    ) -> None:
        """Bring every check to its end. `here`: how far the server's WAL goes."""
        readings: dict[str, tuple[StreamReading, Told]] = {}
        for check in checks:
            name = check.shape.name
            self._say(f"reading {name} in {self._url.place.stream}")
            try:
                readings[name] = await asyncio.to_thread(self._read, name, system, here)
            except PenstockError as error:
                check.problem = str(error)
        async with AsyncExitStack() as stack:
            taken = await self._cuts.take(checks, stack)
            if taken is None:
                return
            exported, places = taken
            is_running = await self._passing.is_running()
            if is_running:
                await self._passing.reach(exported.cut_lsn)
            cut = here._replace(commit_lsn=exported.cut_lsn)
            for check in (check for check in checks if check.problem is None):
                name = check.shape.name
                self._say(f"comparing {name}")
                reading, told = readings[name]
                told_up_to = await asyncio.to_thread(self._catch_up, check, reading, told, cut)
                if not is_running:
                    check.behind_bytes = max(0, exported.cut_lsn - 1 - told_up_to)
                if check.problem is None:
                    tables = await asyncio.to_thread(told.tables)
                    look = StreamLook(self._spark, told, tables, complete=False, show_values=show_values)
                    await asyncio.to_thread(look.run, check, places.get(name))

    def _read(self, shape: str, system: str, here: StreamPosition) -> tuple[StreamReading, Told]:
        reading = StreamReading(self._url.place, self._url.marks_stream, shape)
        told = Told(self._spark, self._url.place)
        reading.begin(system)
        reading.read_what_is_there(told, here)
        return reading, told

    def _catch_up(self, check: ShapeCheck, reading: StreamReading, told: Told, cut: StreamPosition) -> int:
        try:
            told_up_to = reading.read_below(told, cut)
            check.told_behind = None if reading.gap_before is None else reading.gap_before.described()
            return told_up_to
        except PenstockError as error:
            check.problem = str(error)
        return 0

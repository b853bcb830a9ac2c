"""AppId: under which name commits of a shape's table carry their offset."""

from __future__ import annotations

from typing import NamedTuple

from penstock.lake.ports import Position


class AppId(NamedTuple):
    """Who writes a table: the name that each commit carries."""

    system_id: str
    shape: str
    timeline: int

    @property
    def prefix(self) -> str:
        """What the names of all timelines have in common."""
        return f"penstock:{self.system_id}:{self.shape}:"

    @property
    def upkeep(self) -> str:
        """The name that upkeep's notes carry. It begins otherwise: upkeep vouches for no row."""
        return f"penstock-upkeep:{self.system_id}:{self.shape}"

    def __str__(self) -> str:
        return f"{self.prefix}{self.timeline}"

    def position(self, app_id: str, version: int) -> Position | None:
        """What a transaction of the table says, if a writer of this shape made it, on whatever timeline."""
        timeline = app_id.removeprefix(self.prefix)
        return Position(int(timeline), version) if timeline != app_id and timeline.isdecimal() else None

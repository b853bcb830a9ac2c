"""A round: worlds, and the lives of the service while their writers write."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import Final, Literal

from hypothesis import strategies as st

from penstock import fault_points
from tests.spark.oracle.strangers import DEEDS, Stranger
from tests.spark.oracle.world import World

Ending = Literal["stop", "kill", "fault"]
ServerEvent = Literal["restart", "crash"]

_ENDINGS: Final[tuple[Ending, ...]] = ("fault", "stop", "kill")
_SERVER_EVENTS: Final[tuple[ServerEvent | None, ...]] = ("restart", "crash", None)
_FIRST: Final = (
    fault_points.SNAPSHOT_COPYING,
    fault_points.SNAPSHOT_COMMITTED,
    fault_points.REGISTRY_WRITTEN,
)
_LATER: Final = (fault_points.FLUSH_COMMITTED, fault_points.LOG_WRITTEN, fault_points.REGISTRY_WRITTEN)


_MOST_DEEDS: Final = len(DEEDS) - len(_ENDINGS) + 1


@dataclass(frozen=True, slots=True)
class Life:
    """One process of the service: what happens meanwhile, and how it ends."""

    ending: Ending
    fault_point: str = ""
    """As PENSTOCK_FAULT_POINT has it, of a life that ends by it."""
    server: ServerEvent | None = None
    """What Postgres does in the middle of it."""
    disturbed: bool = False
    """In the middle of it strangers come, and then the shapes file is another one, with a SIGHUP."""
    strangers: tuple[Stranger, ...] = ()
    """Who comes then, or else when it has ended."""


@dataclass(frozen=True, slots=True)
class Round:
    """What is played, and how."""

    seed: int
    worlds: tuple[World, ...]
    lives: tuple[Life, ...]


@st.composite
def lives(draw: st.DrawFn) -> tuple[Life, ...]:
    """A life that dies at a fault point, one that is stopped, one that is killed; Postgres restarts in two.

    The first can't die at a flush: its snapshots have everything that there is. One of those that live to
    their end is disturbed. Every deed of strangers is done once, most of them in that life.
    """
    endings = draw(st.sampled_from(list(permutations(_ENDINGS))))
    servers = draw(st.sampled_from(list(permutations(_SERVER_EVENTS))))
    disturbed = draw(st.sampled_from([index for index, ending in enumerate(endings) if ending != "fault"]))
    deeds = list(draw(st.permutations(DEEDS)))
    found = []
    for index, (ending, server) in enumerate(zip(endings, servers, strict=True)):
        point = draw(st.sampled_from(_LATER if index else _FIRST))
        times = draw(st.integers(1, 3))
        found.append(
            Life(
                ending,
                f"{point}:{times}" if ending == "fault" else "",
                server,
                index == disturbed,
                tuple(
                    Stranger(deeds.pop(), draw(st.integers(0, 30)))
                    for _ in range(_MOST_DEEDS if index == disturbed else 1)
                ),
            )
        )
    return tuple(found)

"""From where a leadership reads a stream."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from penstock.model.snapshot_again import SnapshotAgain
from penstock.model.stream_position import History, StreamPosition
from penstock.shapes.pace.held import whole
from penstock.shapes.preparation import Prepared
from penstock.shapes.registry.decisions import Action, Continue
from penstock.shapes.registry.keeper import RegistryKeeper
from penstock.shapes.stream_wiring import position_to_begin

COPIED = SnapshotAgain("new", "it is new")
SLOW, QUICK = Continue("slow", whole(199)), Continue("quick", whole(499))
SWITCHED = History(3, {1: 150, 2: 300})


def prepared(actions: tuple[Action, ...], ceiling_lsn: int) -> Prepared:
    keeper = SimpleNamespace(registry=SimpleNamespace(ceiling_lsn=ceiling_lsn))
    return Prepared(None, actions, cast(RegistryKeeper, keeper), {})


@pytest.mark.parametrize(
    ("actions", "ceiling_lsn", "begins"),
    [
        ((), 100, None),
        ((COPIED,), 100, None),
        ((COPIED, QUICK, SLOW), 0, StreamPosition(2, 200)),
        ((QUICK, SLOW), 250, StreamPosition(2, 250)),
        ((QUICK, SLOW), 300, StreamPosition(2, 300)),
        ((QUICK,), 400, StreamPosition(3, 500)),
    ],
    ids=[
        "no shape",
        "a copy needs nothing from before its cut",
        "the slowest that goes on",
        "the ceiling stands for all",
        "at a switch: the end of the old timeline",
        "further than the ceiling",
    ],
)
def test_where_it_begins(
    actions: tuple[Action, ...], ceiling_lsn: int, begins: StreamPosition | None
) -> None:
    assert position_to_begin(prepared(actions, ceiling_lsn), SWITCHED) == begins

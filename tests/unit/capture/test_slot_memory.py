"""What is said of the slot, for each thing that may have happened to it."""

from __future__ import annotations

import pytest

from penstock.capture.slot_memory import Discovery, SlotMemory, compare, latest
from penstock.postgres.slot.note import SlotNote
from penstock.postgres.timeline import ServerIdentity

FIRST = ServerIdentity("700", 1, {})
PROMOTED = ServerIdentity("700", 2, {1: 0x500})
TWICE = ServerIdentity("700", 3, {1: 0x500, 2: 0x900})
ANOTHER = ServerIdentity("800", 1, {})

GAP, SWITCH, SYSTEM = Discovery.GAP, Discovery.TIMELINE_SWITCHED, Discovery.SYSTEM_CHANGED


@pytest.mark.parametrize(
    ("known", "server", "start_lsn", "kinds"),
    [
        pytest.param(None, FIRST, 0x100, [], id="first start"),
        pytest.param(SlotNote("700", 1, 0x300), FIRST, 0x300, [], id="goes on"),
        pytest.param(SlotNote("700", 1, 0x300), FIRST, 0x200, [], id="confirmed went back, as after a crash"),
        pytest.param(SlotNote("700", 1, 0x300), FIRST, 0x301, [GAP], id="made again behind it"),
        pytest.param(SlotNote("700", 1, 0x300), PROMOTED, 0x300, [SWITCH], id="failover with the slot"),
        pytest.param(
            SlotNote("700", 1, 0x300), PROMOTED, 0x501, [SWITCH, GAP], id="failover without the slot"
        ),
        pytest.param(SlotNote("700", 1, 0x700), PROMOTED, 0x500, [SWITCH], id="ran ahead of the standby"),
        pytest.param(SlotNote("700", 1, 0x700), PROMOTED, 0x600, [SWITCH, GAP], id="ran ahead, new slot"),
        pytest.param(SlotNote("700", 1, 0x300), TWICE, 0x400, [SWITCH, GAP], id="two failovers"),
        pytest.param(SlotNote("700", 3, 0x300), PROMOTED, 0x300, [GAP], id="an older timeline came back"),
        pytest.param(SlotNote("700", 1, 0x300), ANOTHER, 0x100, [SYSTEM, GAP], id="another server"),
    ],
)
def test_compare(
    known: SlotNote | None, server: ServerIdentity, start_lsn: int, kinds: list[Discovery]
) -> None:
    assert [finding.kind for finding in compare(known, server, start_lsn)] == kinds


def test_a_gap_names_both_ends_with_their_timelines() -> None:
    """After a failover the start may be the lower number: the timelines tell that it is no way back."""
    _, gap = compare(SlotNote("700", 1, 0x700), PROMOTED, 0x600)

    assert dict(gap.fields) == {
        "last_known_lsn": "0/500",
        "last_known_timeline": 1,
        "start_lsn": "0/600",
        "timeline": 2,
    }


def test_what_was_published_beyond_the_switch_point_is_said() -> None:
    switch, *_ = compare(SlotNote("700", 1, 0x700), PROMOTED, 0x500)

    assert "up to 0/700" in switch.sentence
    assert "from 0/500 on never happened" in switch.sentence


@pytest.mark.parametrize(
    ("note", "memory", "which"),
    [
        pytest.param(None, None, None, id="nothing"),
        pytest.param(SlotNote("700", 1, 5), None, "note", id="a new process"),
        pytest.param(None, SlotNote("700", 1, 5), "memory", id="no note"),
        pytest.param(SlotNote("700", 1, 5), SlotNote("700", 1, 9), "memory", id="an old log"),
        pytest.param(SlotNote("700", 1, 9), SlotNote("700", 1, 5), "note", id="another led since"),
        pytest.param(SlotNote("700", 2, 5), SlotNote("700", 1, 9), "note", id="another timeline"),
        pytest.param(SlotNote("800", 1, 9), SlotNote("700", 1, 5), "memory", id="moved to another server"),
    ],
)
def test_the_later_of_note_and_memory_counts(
    note: SlotNote | None, memory: SlotNote | None, which: str | None
) -> None:
    assert latest(note, memory) == {"note": note, "memory": memory, None: None}[which]


def test_memory_keeps_the_highest_position_of_a_history() -> None:
    memory = SlotMemory()
    assert memory.known is None
    for lsn in (0x100, 0x300, 0x200):
        memory.saw(FIRST, lsn)
    assert memory.known == SlotNote("700", 1, 0x300)

    memory.saw(PROMOTED, 0x250)

    assert memory.known == SlotNote("700", 2, 0x250)

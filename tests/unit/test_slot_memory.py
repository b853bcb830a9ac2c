from __future__ import annotations

from penstock.capture.slot_memory import SlotMemory


def test_creating_the_slot_at_the_first_start_is_no_gap() -> None:
    assert SlotMemory().created(100) is None


def test_creating_a_slot_that_was_seen_before_is_a_gap_from_the_last_known_position() -> None:
    memory = SlotMemory()
    memory.saw(100)
    memory.saw(300)
    memory.saw(200)

    assert memory.created(500) == 300


def test_a_position_of_zero_is_a_position() -> None:
    memory = SlotMemory()
    memory.saw(0)

    assert memory.created(500) == 0


def test_a_slot_that_this_process_created_is_known_from_then_on() -> None:
    memory = SlotMemory()
    memory.created(100)

    assert memory.created(500) == 100


def test_after_a_gap_the_new_slot_counts_even_if_it_stands_lower() -> None:
    """Another server after a failover may have a shorter log."""
    memory = SlotMemory()
    memory.saw(900)
    memory.created(500)
    memory.saw(600)

    assert memory.created(700) == 600

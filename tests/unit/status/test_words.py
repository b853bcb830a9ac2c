"""The sentences that the terminal and the page share."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.status.health import Fault, Health, Phase
from penstock.status.model import (
    CaptureReading,
    ShapeReading,
    ShapesReading,
    SlotReading,
    SourceReading,
    Status,
)
from penstock.status.words import Trouble, facts, headline, slot, trouble_of, troubles, warnings

SLOT = SlotReading(3.0, exists=True, is_active=True, retained_bytes=2048, confirmed_lsn=0x100)
STATUS = Status("capture", "streaming", ready=True, reasons=[], slot=SLOT)
CAPTURE = CaptureReading(0.1, 0x200, 0x100, 5, 0, 0, 1234)


def of(label: str, **over: Any) -> list[str]:
    status = msgspec.structs.replace(STATUS, **over)
    return [fact.sentence for fact in facts(status) if fact.label == label]


def test_a_sentence_with_its_own_fix_keeps_it() -> None:
    assert trouble_of("slot: it is lost. Fix: make another. Then wait") == Trouble(
        "slot: it is lost.", "make another. Then wait"
    )


@pytest.mark.parametrize("fault", Fault)
def test_every_fault_has_something_to_do(fault: Fault) -> None:
    health = Health()
    health.set_fault(fault, "words of the server")
    reason, _ = health.readiness(0.0).reasons
    what, do = trouble_of(reason)
    assert what == f"{fault}: words of the server"
    assert do


@pytest.mark.parametrize("phase", [each for each in Phase if each not in (Phase.STANDBY, Phase.STREAMING)])
def test_every_phase_that_is_unready_has_something_to_do(phase: Phase) -> None:
    health = Health()
    health.enter(phase)
    assert all(trouble_of(reason).do for reason in health.readiness(0.0).reasons)


def test_headline_and_troubles() -> None:
    status = msgspec.structs.replace(STATUS, ready=False, reasons=["postgres: down", "something new"])
    assert headline(status) == "streaming, NOT READY"
    assert [trouble.what for trouble in troubles(status)] == ["postgres: down", "something new"]
    assert warnings(STATUS) == []


def test_what_is_wrong_and_leaves_it_ready() -> None:
    shapes = [ShapeReading("a", "backing off", 1, 0, 0.0, 0, "no column x. Fix: add it")]
    reading = ShapesReading(0.1, 2, 1, 0, 0, 0, log_is_full=False, shapes=shapes)
    assert warnings(msgspec.structs.replace(STATUS, shapes=reading)) == [
        Trouble("shape a fails: no column x.", "add it")
    ]


def test_quarantine_of_both_services() -> None:
    held = msgspec.structs.replace(CAPTURE, quarantined=2)
    stored = ShapesReading(0.1, 2, 1, 0, 0, 0, log_is_full=False, shapes=[], quarantined=2)
    leaders: list[dict[str, Any]] = [{"capture": held}, {"shapes": stored}]
    for leading in leaders:
        [(what, do)] = warnings(msgspec.structs.replace(STATUS, **leading))
        assert what == "2 records have gone to quarantine since this process began"
        assert "QUARANTINE_URL" in do


def test_numbers_that_tell_nothing_are_left_out() -> None:
    assert [fact.label for fact in facts(STATUS)] == ["slot"]
    leading = msgspec.structs.replace(
        STATUS, capture=CAPTURE, clock_offset_s=0.2, credentials_expire_s=7200.0
    )
    assert [fact.label for fact in facts(leading)] == ["leader", "frontier", "slot", "stream"]


def test_facts() -> None:
    assert of("leader", leader="another, pid 7") == ["another, pid 7"]
    assert of("behind", behind_s=12.34) == [
        "12.3 s since the oldest change was committed that is not delivered"
    ]
    assert of("behind", behind_s=1.0, service="shapes") == [
        "1.0 s since the oldest change was read that is not delivered"
    ]
    assert of("rate", rate_per_s=1234.5) == ["1,234 records accepted a second"]
    assert of("rate", rate_per_s=0.25, service="shapes") == ["0.25 changes read a second"]
    assert of("clock", clock_offset_s=-2.5) == ["the server's is 2.5 s behind ours"]
    assert of("clock", clock_offset_s=2.5) == ["the server's is 2.5 s ahead of ours"]
    assert of("access", credentials_expire_s=600.0) == [
        "AWS credentials expire in 10 min; they are renewed before"
    ]
    busy = msgspec.structs.replace(
        CAPTURE,
        queue_events=3,
        queue_limit=10_000,
        inflight_bytes=1 << 20,
        inflight_limit_bytes=1 << 27,
        pending_limit=1_000_000,
    )
    assert of("queue", capture=busy) == ["3 of 10,000 events wait"]
    assert of("window", capture=busy) == ["1.0 MB of 128.0 MB in flight, 5 of 1,000,000 entries"]


def test_shapes_that_read_a_stream_show_it_and_no_slot() -> None:
    source = SourceReading("shop", "etl")
    unread = SlotReading(0.0)
    assert of("stream", source=source, slot=unread) == ["shop, of slot etl"]
    assert of("slot", source=source, slot=unread) == []
    kept = msgspec.structs.replace(source, retention_s=172_800.0, needed_s=599.0)
    assert of("stream", source=kept) == ["shop, of slot etl; keeps records 48 h"]
    old = msgspec.structs.replace(kept, needed_s=30_600.0)
    assert of("stream", source=old) == [
        "shop, of slot etl; keeps records 48 h, and those that came 8.5 h ago are still needed"
    ]


def test_a_slot_with_a_limit() -> None:
    limited = msgspec.structs.replace(SLOT, safe_bytes=3 << 30)
    assert slot(limited) == (
        "confirmed 0/100, keeps 2.0 kB of WAL on the server (lost after 3.0 GB more) (read 3 s ago)"
    )
    assert "(no limit)" in slot(SLOT)
    for lost in (limited, SLOT):
        assert "more" not in (said := slot(msgspec.structs.replace(lost, is_lost=True)))
        assert "limit" not in said

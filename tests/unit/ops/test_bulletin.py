"""What the page is told, and what isn't told again."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.ops.bulletin import BYTES_A_SECOND, Bulletin
from penstock.status.model import ShapeReading, ShapesReading, SlotReading, Status

AT = 1_800_000_000.0


def shape(name: str, **over: Any) -> ShapeReading:
    reading = ShapeReading(name, "idle", 0x100, 0, 0.0, 0, None, flushed_s=5.0)
    return msgspec.structs.replace(reading, **over)


def status(*shapes: ShapeReading, reasons: tuple[str, ...] = (), age_s: float = 1.0) -> Status:
    reading = ShapesReading(0.1, 0x200, 0x100, 0, 0, 0, log_is_full=False, shapes=list(shapes))
    slot = SlotReading(age_s, exists=True, is_active=True, confirmed_lsn=0x100)
    return Status("shapes", "streaming", not reasons, list(reasons), slot, shapes=reading)


def told(view: Any) -> Any:
    """As it arrives."""
    return msgspec.json.decode(msgspec.json.encode(view))


def apply(known: dict[str, Any], news: dict[str, Any] | None) -> None:
    """As page.js does it."""
    for key, value in (news or {}).items():
        if key == "facts":
            known["facts"] = {k: v for k, v in (known["facts"] | value).items() if v is not None}
        elif key == "shapes":
            for name, cells in value.items():
                if cells is None:
                    del known["shapes"][name]
                else:
                    known["shapes"][name] = known["shapes"].get(name, {}) | cells
        else:
            known[key] = value


def begun(*shapes: ShapeReading) -> Bulletin:
    bulletin = Bulletin()
    bulletin.restart(status(*shapes), AT, 0.0)
    return bulletin


def test_a_newcomer_is_told_everything() -> None:
    view = told(begun(shape("a")).all)

    assert (view["headline"], view["service"], view["order"]) == (
        "streaming, ready",
        "shapes",
        [*view["facts"]],
    )
    assert view["shapes"]["a"] == {
        "state": "idle",
        "rows": "0",
        "position": "0/100",
        "lag": "up to date",
        "flushed": int(AT) - 5,
        "due": None,
        "failing": False,
        "note": "",
    }


def test_what_did_not_change_is_not_told() -> None:
    bulletin = begun(shape("a"))
    assert bulletin.news(status(shape("a", flushed_s=6.4)), AT + 1, 1.0) is None

    news = bulletin.news(status(shape("a", rows=7, flushed_s=0.0), age_s=3.0), AT + 9, 9.0)

    assert news is not None
    assert news["shapes"] == {"a": {"rows": "7", "flushed": int(AT) + 9}}
    assert list(news["facts"]) == ["slot"]
    assert set(news) == {"shapes", "facts"}


def test_what_is_wrong_comes_with_what_to_do() -> None:
    news = begun().news(status(reasons=("slot: it is lost. Fix: make another",)), AT, 1.0)

    assert news is not None
    assert told(news)["troubles"] == [["slot: it is lost.", "make another"]]
    assert (news["ready"], news["headline"]) == (False, "streaming, NOT READY")


def test_numbers_wait_and_failures_do_not() -> None:
    names = [f"shape_{number:03}" for number in range(100)]
    bulletin = begun(*map(shape, names))
    spent, last, told_at = 0, 0, []
    for second in range(1, 121):
        busy = [shape(name, rows=second * 1000, offset_lsn=second << 20, lag_bytes=second) for name in names]
        if second == 60:
            busy[50] = msgspec.structs.replace(
                busy[50], error="no such column. Fix: add it", state="backing off"
            )
        news = bulletin.news(status(*busy), AT + second, float(second))
        spent += len(msgspec.json.encode(news))
        if news and "rows" in news.get("shapes", {}).get("shape_007", {}):
            told_at.append(second)
        if second == 60:
            assert news is not None
            assert (
                news["shapes"]["shape_050"].items()
                >= {"failing": True, "note": "no such column. Fix: add it"}.items()
            )
            last = len(told_at)

    assert spent < 120 * BYTES_A_SECOND * 1.2
    assert last, "numbers come too"
    assert max(later - sooner for sooner, later in pairwise(told_at)) <= 10


_READINGS = st.lists(
    st.builds(
        shape,
        st.sampled_from("abcdef"),
        rows=st.integers(0, 9),
        error=st.sampled_from([None, "it fails", "it fails. Fix: mend it"]),
        due_s=st.sampled_from([None, 0.0, 30.0]),
    ),
    unique_by=lambda reading: reading.name,
)


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(_READINGS, st.lists(st.sampled_from(["postgres: down", "phase is x"]), max_size=1)),
        min_size=1,
    )
)
def test_who_heard_every_word_knows_what_a_newcomer_is_told(
    steps: list[tuple[list[ShapeReading], list[str]]],
) -> None:
    bulletin = begun(shape("a"))
    known = told(bulletin.all)
    for second, (shapes, reasons) in enumerate(steps, 1):
        new = status(*shapes, reasons=tuple(reasons), age_s=float(second))
        # So many bytes are left that numbers have to wait, now and then.
        apply(known, told(bulletin.news(new, AT + second, second * 0.01)))
        assert known == told(bulletin.all)
        urgent = {name: (row["failing"], row["note"]) for name, row in known["shapes"].items()}
        assert urgent == {each.name: (each.error is not None, each.error or "") for each in shapes}
        assert known["ready"] == (not reasons)

"""What `penstock verify` says, and what it ends with."""

from __future__ import annotations

import json

import pytest

from penstock import exit_codes
from penstock.lake.comparison import Counts, Difference, Values, Verdict
from penstock.shapes.verify.report import STREAM, ShapeResult, as_json, exit_code, print_text

EQUAL = ShapeResult("orders", Counts(3, 3, 3))
DIFFERENT = ShapeResult("orders", Counts(3, 3, 2, 1), changing=4)
NOT_ALL = ShapeResult("orders", Counts(3, 3, 2), changing=1)
TOO_MANY = ShapeResult("orders", Counts(3, 3, 2), unchecked=1)
NOT_COMPARED = ShapeResult("orders", problem="it has no snapshot yet")


@pytest.mark.parametrize(
    ("result", "word", "code"),
    [
        (EQUAL, "equal", exit_codes.OK),
        (DIFFERENT, "different", exit_codes.FAILED),
        (NOT_ALL, "not all compared", exit_codes.BAD_INPUT),
        (TOO_MANY, "not all compared", exit_codes.BAD_INPUT),
        (NOT_COMPARED, "not compared", exit_codes.BAD_INPUT),
        (ShapeResult("orders", Counts(3, 2), counted=True, untold=1), "equal", exit_codes.OK),
        (ShapeResult("orders", Counts(3, 0), told=1, untold=3), "equal", exit_codes.OK),
        (ShapeResult("orders", Counts(3, 0), told=0, untold=3), "nothing told", exit_codes.OK),
        (ShapeResult("orders", Counts(0, 0), told=0), "equal", exit_codes.OK),
        (ShapeResult("orders", told=0, untold=3, problem="why"), "not compared", exit_codes.BAD_INPUT),
    ],
)
def test_a_shape(result: ShapeResult, word: str, code: int) -> None:
    assert (result.result, result.exit_code) == (word, code)


@pytest.mark.parametrize(
    ("results", "code"),
    [
        ([], exit_codes.OK),
        ([EQUAL, EQUAL], exit_codes.OK),
        ([EQUAL, NOT_COMPARED], exit_codes.BAD_INPUT),
        ([NOT_COMPARED, DIFFERENT, EQUAL], exit_codes.FAILED),
    ],
)
def test_a_difference_outweighs_what_could_not_be_compared(results: list[ShapeResult], code: int) -> None:
    assert exit_code(results) == code


def test_every_reservation_is_said() -> None:
    result = ShapeResult(
        "orders",
        Counts(3, 3, 3),
        changing=1_000,
        unchecked=2_000,
        untold=3_000,
        told_behind="0/16 of timeline 1",
        counted=True,
        behind_bytes=4_000,
        left_out=("note", "price"),
        problem="why",
    )

    assert [note.split(":")[0] for note in result.notes()] == [
        "why",
        "the service is stopped; the table is up to 4,000 bytes of WAL behind",
        "1,000 keys changed at every look and were not judged",
        "2,000 more keys differed at first and were too many to look at again",
        "it has no key",
        "3,000 rows of Postgres are not in the stream",
        "its stream has a GAP before 0/16 of timeline 1",
        "not compared, because Postgres has dropped them",
    ]
    assert list(EQUAL.notes()) == []


FOUND = ShapeResult(
    "orders",
    Counts(10, 9, 5, 3, 1, 1),
    (
        Difference(Verdict.DIFFERENT, {"id": "7"}, ("note",), 2, {"note": Values("né", None)}),
        Difference(Verdict.MISSING, {"id": "8", "part": None}),
    ),
)


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_text([FOUND, NOT_COMPARED], STREAM)

    said = capsys.readouterr().out
    assert "rows in the stream" in said
    assert said.splitlines()[-5:] == [
        'orders: different id="7": note (2 rows in the stream)',
        'orders:     note: "né" in Postgres, null in the stream',
        'orders: missing id="8", part=null',
        "orders: and 3 more",
        "orders: it has no snapshot yet",
    ]


def test_json_names_the_other_side_as_the_reader_does() -> None:
    found, not_compared = json.loads(as_json([FOUND, NOT_COMPARED], STREAM))

    assert found["table"] == "orders"
    assert found["counts"] == {
        "postgres": 10,
        "stream": 9,
        "equal": 5,
        "different": 3,
        "missing": 1,
        "extra": 1,
    }
    assert found["first"][0]["values"] == {"note": {"postgres": "né", "stream": None}}
    assert found["first"][1]["values"] is None
    assert (not_compared["counts"], not_compared["problem"]) == (None, "it has no snapshot yet")

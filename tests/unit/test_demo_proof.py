"""The demo's proof: it holds for what is allowed, and names what is not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from penstock.demo.app import tell
from penstock.demo.capture_act import Outcome
from penstock.demo.plain import PlainLines
from penstock.demo.proof import Proof, Row, RowKey, fold, prove, read_change
from penstock.demo.stage import DemoFailed
from penstock.demo.story import Rate, Story

KEYS = {"orders": ("id",), "stock": ("product", "place")}


class Record(NamedTuple):
    data: bytes
    shard_id: str = "shard-0"


def payload(action: str, table: str, lsn: str, **columns: Any) -> bytes:
    frame: dict[str, Any] = {"action": action, "lsn": lsn, "schema": "public", "table": table}
    values = [{"name": name, "type": "t", "value": value} for name, value in columns.items()]
    frame |= {"identity": values[:1]} if action == "D" else {"columns": values}
    return json.dumps(frame).encode()


NEW = payload("I", "orders", "0/A1", id=1, status="open")
PAID = payload("U", "orders", "0/A2", id=1, status="paid")
SENT = payload("U", "orders", "0/A3", id=1, status="sent")
OTHER = payload("I", "orders", "0/B1", id=2, status="open")
GONE = payload("D", "orders", "0/B2", id=2)
COMMITTED = [NEW, OTHER, PAID, GONE, SENT]
ROW = RowKey("orders", ("1",))
TABLES: dict[RowKey, Row] = {ROW: {"id": "1", "status": "sent"}}


def judge(stream: Sequence[bytes | Record], **over: Any) -> Proof:
    records = [Record(record) if isinstance(record, bytes) else record for record in stream]
    given: dict[str, Any] = {
        "committed": COMMITTED,
        "transactions": 3,
        "stream": records,
        "tables": TABLES,
        "keys": KEYS,
        "claimed_changes": 5,
        "claimed_transactions": 3,
    }
    return prove(**given | over)


def test_all_there_in_order() -> None:
    proof = judge(COMMITTED)
    assert (proof.transactions, proof.committed, proof.published, proof.duplicate) == (3, 5, 5, 0)
    assert proof.holds
    assert list(proof.findings()) == []


@pytest.mark.parametrize(
    ("stream", "duplicates"),
    [
        ([OTHER, GONE, NEW, PAID, SENT], 0),
        ([NEW, OTHER, PAID, PAID, GONE, SENT], 1),
        ([NEW, OTHER, PAID, SENT, GONE, NEW, PAID, SENT], 3),
        ([NEW, OTHER, SENT, GONE, PAID, SENT], 1),
    ],
    ids=["rows mixed otherwise", "a repeat", "a replay after a crash", "slipped through and sent again"],
)
def test_what_is_allowed(stream: list[bytes], duplicates: int) -> None:
    proof = judge(stream)
    assert (list(proof.findings()), proof.duplicate) == ([], duplicates)


@pytest.mark.parametrize(
    ("stream", "findings"),
    [
        (
            [NEW, OTHER, GONE, SENT],
            ["missing: update of orders 1 at 0/A2"],
        ),
        (
            [NEW, OTHER, PAID, GONE],
            [
                "missing: update of orders 1 at 0/A3",
                "differing: orders 1 has other values in the stream than in the table",
            ],
        ),
        (
            [NEW, OTHER, PAID, SENT],
            [
                "missing: delete from orders 2 at 0/B2",
                "differing: orders 2 is in the stream and not in the table",
            ],
        ),
        (
            [OTHER, GONE],
            [
                "missing: insert into orders 1 at 0/A1",
                "missing: update of orders 1 at 0/A2",
                "missing: update of orders 1 at 0/A3",
                "differing: orders 1 is in the table and not in the stream",
            ],
        ),
        (
            [NEW, OTHER, SENT, GONE, PAID],
            [
                "disordered: update of orders 1 at 0/A3 comes before an earlier change of that row",
                "differing: orders 1 has other values in the stream than in the table",
            ],
        ),
        (
            [NEW, PAID, SENT, OTHER, GONE, NEW, SENT],
            ["disordered: update of orders 1 at 0/A2 comes before an earlier change of that row"],
        ),
        (
            [NEW, OTHER, Record(PAID, "shard-1"), GONE, SENT],
            ["disordered: orders 1 is in several shards"],
        ),
        (
            [NEW, OTHER, PAID, GONE, SENT, b'{"action":"I","lsn":"0/C1"}'],
            ['invented: {"action":"I","lsn":"0/C1"}'],
        ),
    ],
    ids=[
        "a middle record",
        "a last record",
        "a delete",
        "a whole row",
        "the wrong order",
        "the wrong order at a replay",
        "two shards",
        "a stranger",
    ],
)
def test_what_is_wrong_is_named(stream: list[bytes | Record], findings: list[str]) -> None:
    proof = judge(stream)
    assert not proof.holds
    assert list(proof.findings()) == findings


def test_a_changed_byte_is_a_missing_and_an_invented_record() -> None:
    proof = judge([NEW, OTHER, PAID.replace(b"paid", b"Paid"), GONE, SENT])
    assert (len(proof.missing), len(proof.invented), proof.duplicate) == (1, 1, 0)


def test_the_tables_must_be_those_of_the_stream() -> None:
    changed = {ROW: {"id": "1", "status": "sent "}}
    assert list(judge(COMMITTED, tables=changed).findings()) == [
        "differing: orders 1 has other values in the stream than in the table"
    ]


def test_a_witness_that_misses_what_the_writers_did_proves_nothing() -> None:
    assert list(judge(COMMITTED, claimed_changes=6, claimed_transactions=4).findings()) == [
        "unwitnessed: the writers committed 6 changes, the witness saw 5",
        "unwitnessed: the writers committed 4 transactions, the witness saw 3",
    ]


def test_values_are_compared_as_they_were_written() -> None:
    frame = (
        b'{"action":"I","lsn":"0/1","schema":"public","table":"stock","columns":['
        b'{"name":"product","value":9007199254740993},{"name":"place","value":"a, \\"b\\""},'
        b'{"name":"price","value":1.10},{"name":"note","value":null}]}'
    )
    row = {"product": "9007199254740993", "place": 'a, "b"', "price": "1.10", "note": None}
    key = RowKey("stock", ("9007199254740993", 'a, "b"'))
    assert fold({frame: read_change(frame, KEYS)}, [Record(frame)]) == {key: row}


def test_a_failed_proof_is_exit_code_1_and_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = Outcome(judge([NEW, OTHER, GONE, SENT]), takeover_s=0.5, rollbacks=0)
    assert tell(PlainLines(Story("a story")), lambda: outcome) == 1
    printed = capsys.readouterr().out
    assert "FAILED: committed changes are missing from the stream" in printed
    assert "missing            1" in printed
    assert "missing: update of orders 1 at 0/A2" in printed


def test_a_failed_demo_is_exit_code_1_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    story = Story("a story")

    def play() -> Outcome:
        with story.step("something that fails"):
            raise DemoFailed("capture A ended\nits last words")

    assert tell(PlainLines(story), play) == 1
    out, err = capsys.readouterr()
    assert "no  something that fails" in out
    assert err == "capture A ended\nits last words\n"


def test_a_rate_forgets_what_is_long_ago() -> None:
    rate = Rate(window_s=2.0)
    assert rate.per_s(100, now=10.0) == 0.0
    assert rate.per_s(110, now=11.0) == 10.0
    assert rate.per_s(150, now=12.5) == pytest.approx(40 / 1.5)

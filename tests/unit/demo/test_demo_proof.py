"""The demo's proof: it holds for what is allowed, and names what is not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from penstock.demo import lake_proof
from penstock.demo.app import tell
from penstock.demo.capture_act import CaptureOutcome
from penstock.demo.demo_outcome import DemoOutcome
from penstock.demo.lake_proof import LakeProof, TableCounts
from penstock.demo.plain import PlainLines
from penstock.demo.proof import Proof, Row, RowKey, fold, prove, read_change
from penstock.demo.shapes_act import ShapesOutcome
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
TRANSACTIONS = [[NEW, OTHER], [PAID, GONE], [SENT]]
COMMITTED = [payload for transaction in TRANSACTIONS for payload in transaction]
ROW = RowKey("orders", ("1",))
TABLES: dict[RowKey, Row] = {ROW: {"id": "1", "status": "sent"}}


def judge(stream: Sequence[bytes | Record], **over: Any) -> Proof:
    records = [Record(record) if isinstance(record, bytes) else record for record in stream]
    given: dict[str, Any] = {
        "committed": TRANSACTIONS,
        "restored": TRANSACTIONS,
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


@pytest.mark.parametrize(
    ("restored", "findings"),
    [
        (
            [[NEW, OTHER], [PAID], [GONE], [SENT]],
            [
                "torn: the transaction that begins with update of orders 1 at 0/A2 is not restored whole",
                "torn: a transaction of 1 changes was restored that was not committed so",
                "torn: a transaction of 1 changes was restored that was not committed so",
            ],
        ),
        (
            [[NEW, OTHER], [PAID, GONE]],
            ["torn: the transaction that begins with update of orders 1 at 0/A3 is not restored whole"],
        ),
        (
            [[NEW, OTHER], [PAID, GONE], [PAID, GONE], [SENT]],
            ["torn: a transaction of 2 changes was restored that was not committed so"],
        ),
        (
            [[PAID, GONE], [NEW, OTHER], [SENT]],
            ["torn: transactions are restored in another order than they were committed"],
        ),
    ],
    ids=["torn apart", "missing", "twice", "out of order"],
)
def test_transactions_must_be_restored_as_they_were(restored: list[list[bytes]], findings: list[str]) -> None:
    assert list(judge(COMMITTED, restored=restored).findings()) == findings


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


def verified(shape: str, *first: dict[str, Any], result: str = "equal", **over: Any) -> dict[str, Any]:
    """What `penstock verify --json` says of a shape with two rows."""
    return {
        "shape": shape,
        "result": result,
        "problem": None,
        "counts": {"postgres": 2, "lake": 2, "equal": 2, "different": 0, "missing": 0, "extra": 0},
        "changing": 0,
        "unchecked": 0,
        "behind_bytes": 0,
        "left_out": [],
        "first": list(first),
        **over,
    }


LOST = {"verdict": "missing", "key": {"id": "7", "line": "1"}, "columns": [], "copies": 1, "values": None}
ONE_LOST = {"postgres": 2, "lake": 1, "equal": 1, "different": 0, "missing": 1, "extra": 0}
EMPTY = dict.fromkeys(ONE_LOST, 0)


def read_lake(exit_code: int, *results: dict[str, Any]) -> LakeProof:
    return lake_proof.read(
        exit_code, json.dumps(results).encode(), ["lines", "open"], lambda: "its last words"
    )


def test_equal_tables_prove_the_lake() -> None:
    proof = read_lake(0, verified("open"), verified("lines"))
    assert (proof.holds, proof.findings) == (True, ())
    assert proof.tables == (TableCounts("lines", 2, 2, 2), TableCounts("open", 2, 2, 2))


@pytest.mark.parametrize(
    ("exit_code", "lines", "finding"),
    [
        (1, [verified("lines", LOST, result="different", counts=ONE_LOST)], "lines: missing id=7, line=1"),
        (0, [verified("lines", counts=ONE_LOST)], "lines: 2 rows in Postgres, 1 of them equal in the lake"),
        (0, [verified("lines", counts=EMPTY)], "lines: 0 rows in Postgres, 0 of them equal in the lake"),
        (0, [verified("lines", changing=3)], "lines: 3 rows were not judged"),
        (2, [verified("lines", counts=None, problem="it is new")], "lines: it is new"),
        (0, [], "lines: penstock verify says nothing of it"),
        (1, [verified("lines")], "penstock verify ended with 1"),
    ],
    ids=[
        "a lost row",
        "counts that disagree",
        "empty",
        "not judged",
        "not compared",
        "left out",
        "exit code",
    ],
)
def test_what_is_wrong_in_the_lake_is_named(
    exit_code: int, lines: list[dict[str, Any]], finding: str
) -> None:
    proof = read_lake(exit_code, *lines, verified("open"))
    assert (proof.holds, proof.findings) == (False, (finding,))


def test_a_verify_that_fails_altogether_is_quoted() -> None:
    proof = lake_proof.read(1, b"", ["lines"], lambda: "its last words")
    assert (proof.holds, proof.findings) == (False, ("penstock verify ended with 1; its last words",))


def outcome(stream: Sequence[bytes] = COMMITTED, lake: LakeProof | None = None) -> DemoOutcome:
    equal = LakeProof((TableCounts("lines", 2, 2, 2),))
    return DemoOutcome(
        CaptureOutcome(judge(stream), takeover_s=0.5, rollbacks=0),
        ShapesOutcome(equal if lake is None else lake, restart_s=9.0),
    )


def test_both_proofs_together_are_exit_code_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert tell(PlainLines(Story("a story")), outcome) == 0
    printed = capsys.readouterr().out
    assert "Proved: every committed change is in the stream, and the lake tables equal Postgres" in printed
    assert "lines              2  rows, 2 in the lake: 0 different, 0 missing, 0 extra" in printed


def test_a_failed_proof_is_exit_code_1_and_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert tell(PlainLines(Story("a story")), lambda: outcome([NEW, OTHER, GONE, SENT])) == 1
    printed = capsys.readouterr().out
    assert "FAILED: committed changes are missing from the stream" in printed
    assert "missing            1" in printed
    assert "missing: update of orders 1 at 0/A2" in printed


def test_a_lake_that_differs_is_exit_code_1_and_says_where(capsys: pytest.CaptureFixture[str]) -> None:
    lake = read_lake(1, verified("lines", LOST, result="different", counts=ONE_LOST), verified("open"))
    assert tell(PlainLines(Story("a story")), lambda: outcome(lake=lake)) == 1
    printed = capsys.readouterr().out
    assert "FAILED: the lake tables are not what Postgres holds" in printed
    assert "lines              2  rows, 1 in the lake: 0 different, 1 missing, 0 extra" in printed
    assert "lines: missing id=7, line=1" in printed


def test_a_failed_demo_is_exit_code_1_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    story = Story("a story")

    def play() -> DemoOutcome:
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

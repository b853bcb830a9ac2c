from __future__ import annotations

import json

import pytest

from penstock.kinesis.marked.prefix import PREFIX_BYTES, MarkPrefix, unmarked
from penstock.model.log_offset import OP_INFINITY
from penstock.model.stream_position import History, StreamPosition, operation

PAYLOAD = b'{"action":"I","schema":"public","table":"t","columns":[{"name":"id","value":1}]}'


def prefix(timeline: int = 1) -> MarkPrefix:
    return MarkPrefix(History(timeline, {1: 0x200} if timeline > 1 else {}), "0123456789ab")


def test_the_position_comes_first_and_the_rest_is_untouched() -> None:
    marked = prefix().put(PAYLOAD, 0x16B374D848, 4)

    assert marked is not None
    assert marked == b'{"pos":"00000001.00000016B374D848.000000000005","by":"0123456789ab",' + PAYLOAD[1:]
    assert unmarked(marked) == PAYLOAD
    assert json.loads(marked)["action"] == "I"


@pytest.mark.parametrize(
    ("commit_lsn", "op_offset", "position"),
    [
        (0x1FF, -1, "00000001.00000000000001FF.000000000000"),
        (0x1FF, OP_INFINITY, "00000001.00000000000001FF.FFFFFFFFFFFF"),
        (0x200, 0, "00000002.0000000000000200.000000000001"),
    ],
)
def test_begin_commit_and_a_former_timeline(commit_lsn: int, op_offset: int, position: str) -> None:
    marked = prefix(timeline=2).put(PAYLOAD, commit_lsn, op_offset)

    assert marked is not None
    assert json.loads(marked)["pos"] == position
    assert marked.index(b'"action"') == PREFIX_BYTES


def test_transactions_in_turn() -> None:
    some = prefix(timeline=2)
    marked = [some.put(PAYLOAD, lsn, 0) for lsn in (0x1FF, 0x200, 0x200, 0x1FF)]
    assert [each[8:33] for each in marked if each] == [
        b"00000001.00000000000001FF",
        b"00000002.0000000000000200",
        b"00000002.0000000000000200",
        b"00000001.00000000000001FF",
    ]


def test_operations_forth_and_back_across_the_digits_that_are_kept() -> None:
    some, offsets = prefix(), [-1, 0, 254, 255, 256, 511, 510, 2, 70_000, OP_INFINITY, 0]
    marked = [some.put(PAYLOAD, 1, offset) for offset in offsets]
    assert [each[8:46].decode() for each in marked if each] == [
        str(StreamPosition(1, 1, operation(offset))) for offset in offsets
    ]


@pytest.mark.parametrize(
    "payload", [b"", b"{}", b"[1]", b"null", b'{"action":"I"', b'{"type":"a "quoted" one"}', b'{"a":1} {']
)
def test_what_is_no_object_gets_none(payload: bytes) -> None:
    assert prefix().put(payload, 1, 0) is None

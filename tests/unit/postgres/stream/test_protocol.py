from __future__ import annotations

from datetime import UTC, datetime

import pytest

from penstock.errors import ProtocolViolation
from penstock.postgres.stream import protocol
from penstock.postgres.stream.protocol import (
    Keepalive,
    XLogData,
    parse_frame,
    server_time_us,
    status_update,
    unix_seconds,
)

XLOGDATA = bytes.fromhex("77 0000000001000000 0000000001000010 0002ab1234567890") + b'{"action":"I"}'
KEEPALIVE = bytes.fromhex("6b 0000000001000010 0002ab1234567890 01")


@pytest.mark.parametrize("kind", [bytes, memoryview])
def test_xlogdata(kind: type[bytes] | type[memoryview]) -> None:
    frame = parse_frame(kind(XLOGDATA))

    assert frame == XLogData(0x1000000, 0x1000010, 0x0002AB1234567890, b'{"action":"I"}')
    assert isinstance(frame, XLogData)
    assert type(frame.payload) is bytes


def test_xlogdata_without_payload() -> None:
    assert parse_frame(XLOGDATA[: protocol.PAYLOAD_AT]) == XLogData(
        0x1000000, 0x1000010, 0x2AB1234567890, b""
    )


def test_the_hot_path_reads_the_same_header() -> None:
    frame = parse_frame(XLOGDATA)

    assert isinstance(frame, XLogData)
    assert protocol.unpack_xlogdata(memoryview(XLOGDATA)) == frame[:3]
    assert XLOGDATA[protocol.PAYLOAD_AT :] == frame.payload


@pytest.mark.parametrize(("flag", "asked"), [(b"\x00", False), (b"\x01", True)])
def test_keepalive(flag: bytes, asked: bool) -> None:
    assert parse_frame(KEEPALIVE[:-1] + flag) == Keepalive(0x1000010, 0x0002AB1234567890, asked)


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        pytest.param(b"", "tag none, 0 bytes", id="empty"),
        pytest.param(b"s" + XLOGDATA[1:], "tag 's', 39 bytes", id="a tag of a later protocol"),
        pytest.param(b"\x00", r"tag '\\x00', 1 bytes", id="an unprintable tag"),
        pytest.param(XLOGDATA[: protocol.PAYLOAD_AT - 1], "tag 'w', 24 bytes", id="short XLogData"),
        pytest.param(KEEPALIVE[:-1], "tag 'k', 17 bytes", id="short keepalive"),
        pytest.param(KEEPALIVE + b"\x00", "tag 'k', 19 bytes", id="long keepalive"),
    ],
)
def test_anything_else_is_a_violation(frame: bytes, said: str) -> None:
    with pytest.raises(ProtocolViolation, match=said):
        parse_frame(frame)


def test_status_update_reports_received_as_written_and_the_frontier_as_flushed_and_applied() -> None:
    second_of_2000 = datetime(2000, 1, 1, 0, 0, 1, tzinfo=UTC).timestamp()

    update = status_update(write=0x2A, flush=0x1B, now_unix_s=second_of_2000)

    assert update.hex(" ", 8) == bytes.fromhex(
        "72 000000000000002a 000000000000001b 000000000000001b 00000000000f4240 00"
    ).hex(" ", 8)


def test_status_update_can_ask_for_an_answer() -> None:
    quiet = status_update(write=1, flush=1, now_unix_s=2e9)
    asking = status_update(write=1, flush=1, now_unix_s=2e9, reply_requested=True)

    assert asking == quiet[:-1] + b"\x01"


def test_the_highest_lsn_fits() -> None:
    assert status_update(write=2**63 - 1, flush=0, now_unix_s=2e9)[1:9] == b"\x7f" + b"\xff" * 7


@pytest.mark.parametrize("frame", [XLOGDATA, KEEPALIVE], ids=["XLogData", "keepalive"])
def test_every_frame_says_when_it_was_sent(frame: bytes) -> None:
    assert server_time_us(frame) == 0x0002AB1234567890


def test_server_time_counts_from_2000() -> None:
    moment = datetime(2024, 2, 29, 12, tzinfo=UTC)
    since_2000_us = int((moment - datetime(2000, 1, 1, tzinfo=UTC)).total_seconds() * 1e6) + 250_000

    assert unix_seconds(since_2000_us) == moment.timestamp() + 0.25

"""Frames of the streaming replication protocol, as bytes and as values."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from penstock.errors import ProtocolViolation

TAG_XLOGDATA: Final = ord("w")
TAG_KEEPALIVE: Final = ord("k")
PAYLOAD_AT: Final = 25
"""Where an XLogData frame's payload begins."""

_POSTGRES_EPOCH_S: Final = 946_684_800
"""2000-01-01 UTC in Unix seconds: the protocol's clock starts there."""

_XLOGDATA = struct.Struct("!xqqq")
_KEEPALIVE = struct.Struct("!xqqB")
_STATUS = struct.Struct("!cqqqqB")

unpack_xlogdata = _XLOGDATA.unpack_from
"""`(wal_start, wal_end, server_time_us)` of a frame known to be XLogData; the hot path."""


class XLogData(NamedTuple):
    """A `w` frame: one message of the output plugin."""

    wal_start: int
    wal_end: int
    server_time_us: int
    payload: bytes


class Keepalive(NamedTuple):
    """A `k` frame: the server's position, and whether it wants an answer."""

    wal_end: int
    server_time_us: int
    reply_requested: bool


def parse_frame(frame: bytes | memoryview) -> XLogData | Keepalive:
    """Read one COPY BOTH message; an unknown tag or a short frame is fatal for the connection."""
    tag = frame[0] if len(frame) else None
    if tag == TAG_XLOGDATA and len(frame) >= PAYLOAD_AT:
        wal_start, wal_end, server_time_us = unpack_xlogdata(frame)
        return XLogData(wal_start, wal_end, server_time_us, bytes(frame[PAYLOAD_AT:]))
    if tag == TAG_KEEPALIVE and len(frame) == _KEEPALIVE.size:
        wal_end, server_time_us, reply = _KEEPALIVE.unpack(frame)
        return Keepalive(wal_end, server_time_us, bool(reply))
    shown = "none" if tag is None else repr(chr(tag))
    raise ProtocolViolation(f"unknown replication frame: tag {shown}, {len(frame)} bytes")


def server_time_us(frame: bytes | memoryview) -> int:
    """When the server sent a frame, on its clock."""
    return parse_frame(frame).server_time_us


def status_update(*, write: int, flush: int, now_unix_s: float, reply_requested: bool = False) -> bytes:
    """Build an `r` frame: `write` is what we received, `flush` (and apply) what is durable."""
    time_us = int((now_unix_s - _POSTGRES_EPOCH_S) * 1_000_000)
    return _STATUS.pack(b"r", write, flush, flush, time_us, reply_requested)


def unix_seconds(server_time_us: int) -> float:
    """A frame's server time in Unix seconds."""
    return server_time_us / 1_000_000 + _POSTGRES_EPOCH_S

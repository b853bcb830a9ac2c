"""The pointer: the small record that stands in a stream for one in quarantine.

`{"action":"Q",` and then where the payload is, never what is in it. Its action is none of a decoder's.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from penstock.decoding.decoder import Decoder, Summary
from penstock.model.log_offset import LogOffset
from penstock.model.lsn import format_lsn

POINTER: Final = "Q"
"""Its action."""
POINTER_MEMBER: Final = b'"action":"Q"'
"""What a marked record has behind its prefix if it is one."""
_BEGINNING: Final = b"{" + POINTER_MEMBER


def is_pointer(payload: bytes) -> bool:
    """Whether a record, without its prefix, is one."""
    return payload.startswith(_BEGINNING)


def action_of(payload: bytes, decoder: Decoder) -> str | None:
    """An Action's value, or POINTER; None if it can't be read."""
    action = decoder.action(payload)
    if action is not None:
        return action.value
    return POINTER if is_pointer(payload) else None


def pointer_record(payload: bytes, what: Summary, *, url: str, reason: str, offset: LogOffset) -> bytes:
    """The pointer to a payload that is stored at a URL. The same arguments give the same bytes.

    `reason` must not quote the row.
    """
    quarantined = _Quarantined(url, len(payload), hashlib.sha256(payload).hexdigest(), reason, what.action)
    position = _Position(format_lsn(offset.tx_offset), offset.op_offset)
    return msgspec.json.encode(_Pointer(POINTER, quarantined, what.lsn, position, what.schema, what.table))


class _Quarantined(msgspec.Struct, frozen=True):
    url: str
    bytes: int
    sha256: str
    reason: str
    action: str | None


class _Position(msgspec.Struct, frozen=True):
    commit_lsn: str
    op_offset: int


class _Pointer(msgspec.Struct, frozen=True):
    """Fields stand in the order in which they are written."""

    action: str
    quarantined: _Quarantined
    lsn: str | None
    position: _Position
    schema: str | None
    table: str | None

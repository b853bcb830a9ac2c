"""The pointer to a quarantined payload: what it says, and how it is told from other records."""

from __future__ import annotations

import hashlib
import json

import pytest

from penstock.decoding.decoder import Summary
from penstock.decoding.plugins import STREAM_PLUGIN, decoder_for
from penstock.kinesis.marked.pointer import POINTER, POINTER_MEMBER, action_of, is_pointer, pointer_record
from penstock.kinesis.marked.prefix import PREFIX_BYTES, MarkPrefix
from penstock.model.log_offset import LogOffset
from penstock.model.stream_position import History

PAYLOAD = b'{"action":"I","columns":[{"name":"secret","value":"hunter2"}]}' * 1000
KNOWN = Summary("I", "public", "Käufe", "16/B374D800")


def pointer(what: Summary = KNOWN) -> bytes:
    offset = LogOffset(0x16_B374_D848, 14)
    return pointer_record(PAYLOAD, what, url="file:///q/one", reason="too large", offset=offset)


def test_it_says_where_what_and_why_in_a_fixed_order() -> None:
    digest = hashlib.sha256(PAYLOAD).hexdigest()

    assert pointer().decode() == (
        f'{{"action":"Q","quarantined":{{"url":"file:///q/one","bytes":{len(PAYLOAD)},"sha256":"{digest}",'
        '"reason":"too large","action":"I"},"lsn":"16/B374D800",'
        '"position":{"commit_lsn":"16/B374D848","op_offset":14},"schema":"public","table":"Käufe"}'
    )


def test_it_is_byte_identical_on_repetition_and_holds_no_row_values() -> None:
    assert pointer() == pointer()
    assert b"hunter2" not in pointer()


def test_what_is_unknown_is_null() -> None:
    record = json.loads(pointer(Summary()))

    assert (record["lsn"], record["schema"], record["table"]) == (None, None, None)
    assert record["quarantined"]["action"] is None
    assert record["position"] == {"commit_lsn": "16/B374D848", "op_offset": 14}


def test_it_is_known_with_its_prefix_and_without() -> None:
    marked = MarkPrefix(History(1, {}), "0123456789ab").put(pointer(), 100, 2)

    assert is_pointer(pointer())
    assert marked is not None
    assert marked.startswith(POINTER_MEMBER, PREFIX_BYTES)
    assert not is_pointer(PAYLOAD)


@pytest.mark.parametrize(
    ("payload", "action"),
    [
        (pointer(), POINTER),
        (b'{"action":"I","schema":', "I"),
        (b'{"action":"C"}', "C"),
        (b'{"action":"?"}', None),
        (b"", None),
    ],
)
def test_the_action_of_a_record(payload: bytes, action: str | None) -> None:
    assert action_of(payload, decoder_for(STREAM_PLUGIN)) == action

"""What stands in for an event that can't be sent, in a plain stream and in a marked one."""

from __future__ import annotations

import json
from typing import cast

import pytest

from penstock.decoding.wal2json import Wal2Json
from penstock.kinesis.marked.prefix import MarkPrefix
from penstock.kinesis.write.event import NO_OBJECT, ChangeEvent
from penstock.kinesis.write.undeliverable import UndeliverablePolicy
from penstock.model.stream_position import History
from penstock.status.health import Health
from penstock.status.metrics import CaptureMetrics
from tests.memory_store import MemoryStore

PAYLOAD = b'{"action":"I","lsn":"0/64","schema":"public","table":"t","columns":[]}'
BROKEN = b'{"action":"I","schema":"public","table":"t","type":"a "b" c"}'
MARK = MarkPrefix(History(1, {}), "0123456789ab")
POSITION = "00000001.0000000000000064.000000000003"


def policy(store: MemoryStore | None) -> UndeliverablePolicy:
    return UndeliverablePolicy(
        store=store,
        slot="slot",
        summary=Wal2Json().summary,
        health=Health(),
        metrics=CaptureMetrics(),
        backoff=lambda attempt: 0.0,
    )


def event(payload: bytes, mark: MarkPrefix | None = None, fault: str | None = None) -> ChangeEvent:
    prefix = b"" if mark is None else mark.at(0x64, 2)
    return ChangeEvent(1, payload, "key", 0, 0x64, 2, 0.0, fault, prefix=prefix)


async def stand_in(store: MemoryStore, one: ChangeEvent) -> dict[str, object]:
    replaced = await policy(store).stand_in(one)
    assert (replaced.fault, replaced.is_pointer) == (None, True)
    assert replaced.record_size_bytes == len(replaced.data) + len("key")
    body: dict[str, object] = json.loads(replaced.data)
    return body


async def test_a_pointer_takes_the_place_of_a_payload() -> None:
    store = MemoryStore()
    pointer = await stand_in(store, event(PAYLOAD))
    assert list(store.stored.values()) == [PAYLOAD]
    assert (pointer["action"], pointer["table"], pointer.get("pos")) == ("Q", "t", None)


async def test_in_a_marked_stream_the_pointer_has_the_position_and_the_payload_is_kept_without_it() -> None:
    store = MemoryStore()
    pointer = await stand_in(store, event(PAYLOAD, MARK))
    await stand_in(store, event(PAYLOAD, MarkPrefix(History(1, {}), "ba9876543210")))
    assert list(store.stored.values()) == [PAYLOAD], "the same file, whoever leads"
    assert (pointer["pos"], pointer["by"], pointer["action"]) == (POSITION, "0123456789ab", "Q")
    assert pointer["lsn"] == "0/64"


async def test_what_can_not_take_the_prefix_is_kept_as_it_is() -> None:
    store = MemoryStore()
    pointer = await stand_in(store, event(BROKEN, MARK, NO_OBJECT))
    assert list(store.stored.values()) == [BROKEN]
    assert pointer["pos"] == POSITION
    quarantined = cast("dict[str, object]", pointer["quarantined"])
    assert (quarantined["reason"], quarantined["action"]) == (NO_OBJECT, "I")
    assert (pointer["schema"], pointer["table"]) == ("public", "t"), "its readers have to know whose it is"


@pytest.mark.parametrize(("payload", "fault"), [(PAYLOAD, None), (BROKEN, NO_OBJECT)])
async def test_under_block_it_holds_its_key(payload: bytes, fault: str | None) -> None:
    blocked = await policy(None).stand_in(event(payload, MARK, fault))
    assert blocked.payload == b""
    assert blocked.fault == fault or blocked.fault == "too_large"

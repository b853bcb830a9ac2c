"""A change that is too large for a record: kept in quarantine, or told with all but its values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.decoding.wal2json import Wal2Json
from penstock.kinesis.marked.pointer import is_pointer
from penstock.kinesis.marked.prefix import MarkPrefix
from penstock.lake.errors import StorageFailed
from penstock.lake.stream.keeping import Keeping, LargeRecords
from penstock.model.key_indexes import KeyIndexes
from penstock.model.log_offset import LogOffset
from penstock.model.stream_position import History

OFFSET = LogOffset(0x100, 4)
KEY = "public.notes:7"
LIMIT = 400


def record(length: int) -> bytes:
    cells = [
        {"name": "id", "type": "integer", "value": 7},
        {"name": "t", "type": "text", "value": "§" * length},
    ]
    return json.dumps(
        {"action": "I", "lsn": "0/90", "schema": "public", "table": "notes", "columns": cells},
        separators=(",", ":"),
        ensure_ascii=False,
    ).encode()


def large(quarantine_url: str | None = None) -> LargeRecords:
    return LargeRecords(
        Keeping(LIMIT, quarantine_url),
        shape="notes",
        region="eu-west-1",
        decoder=Wal2Json(),
        indexes=KeyIndexes(("id",), ()),
    )


def marked_size(payload: bytes) -> int:
    marked = MarkPrefix(History(1, {}), "0" * 12).put(payload, *OFFSET)
    assert marked is not None
    return len(marked) + len(KEY)


def longest_that_fits() -> int:
    return max(length for length in range(200) if marked_size(record(length)) <= LIMIT)


def test_what_fits_is_left_alone(tmp_path: Path) -> None:
    fitting = record(longest_that_fits())
    assert large().fitting(fitting, KEY, OFFSET) is fitting
    assert large(tmp_path.as_uri()).fitting(fitting, KEY, OFFSET) is fitting
    assert not is_pointer(fitting)
    assert list(tmp_path.iterdir()) == []


def test_without_a_quarantine_it_is_told_without_values() -> None:
    payload = record(longest_that_fits() + 1)
    with pytest.raises(StorageFailed) as caught:
        large().fitting(payload, KEY, OFFSET)
    said = str(caught.value)
    assert said.startswith(
        f"shape notes: a change of public.notes (key: id) at {OFFSET} is a record of {marked_size(payload)}"
        " bytes, and 400 are allowed. Fix: leave long columns out"
    )
    assert "UNDELIVERABLE_POLICY=quarantine" in said
    assert "§" not in said


def test_with_one_a_pointer_takes_its_place(tmp_path: Path) -> None:
    payload = record(1_000)
    pointer = large(tmp_path.as_uri()).fitting(payload, KEY, OFFSET)

    assert is_pointer(pointer)
    assert marked_size(pointer) < 2 * LIMIT
    assert Wal2Json().relation(pointer) == ("public", "notes")
    told = json.loads(pointer)
    assert told["quarantined"] | {"url": "", "sha256": ""} == {
        "url": "",
        "sha256": "",
        "bytes": len(payload),
        "reason": "too_large",
        "action": "I",
    }
    (kept,) = tmp_path.iterdir()
    assert kept.as_uri() == told["quarantined"]["url"]
    assert kept.read_bytes() == payload
    assert kept.name.startswith("notes-")
    assert large(tmp_path.as_uri()).fitting(payload, KEY, OFFSET) == pointer, "the same after a crash"


def test_a_quarantine_that_cant_be_written_fails_the_flush(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageFailed, match="see that executors can write to QUARANTINE_URL"):
        large((tmp_path / "file" / "below").as_uri()).fitting(record(1_000), KEY, OFFSET)

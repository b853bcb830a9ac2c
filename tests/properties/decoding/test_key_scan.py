"""What the scanner says of a payload is what reading the payload says, whatever came before it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.decoding.wal2json import Wal2Json
from penstock.kinesis.write.partition_key import Fallback, KeyColumns, PartitionKeys, UnknownRelation
from penstock.model.key_indexes import KeyIndexes
from penstock.model.relation import Relation

TRICKY = st.sampled_from(
    [
        '"pk":[{"name":"id"',
        ',"columns":[{"name":"id","type":"bigint","value":7}',
        '}],"pk":[]}',
        "",
        "é",
        "\\",
        "]}",
    ]
)
TEXTS = TRICKY | st.text(max_size=8)
NAMES = ["id", "code", 'i"d', "part"]
TYPES = [*["bigint"] * 9, "text"]
VALUES = (
    st.integers(0, 20)
    | st.integers(0, 20)
    | st.integers(-5, 20)
    | TEXTS
    | st.booleans()
    # json.dumps would write Infinity, which is no JSON, and which wal2json never writes.
    | st.floats(allow_nan=False, allow_infinity=False, width=16)
    | st.none()
)


def dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@st.composite
def payloads(draw: st.DrawFn) -> bytes:
    """Changes of two tables whose columns, keys and identities change at any time."""
    more = draw(st.lists(st.sampled_from(NAMES[1:]), max_size=3, unique=True))
    columns = draw(st.sampled_from([["id", *more], ["id", *more], [*more, "id"], more or ["code"]]))

    # Both rows of a change are of one table: a column has the same type in both.
    types = {name: draw(st.sampled_from(TYPES)) for name in NAMES}

    def row(names: Sequence[str]) -> list[dict[str, Any]]:
        return [{"name": name, "type": types[name], "value": draw(VALUES)} for name in names]

    action = draw(st.sampled_from("IUUDT"))
    frame: dict[str, Any] = {"action": action, "lsn": "0/1", "schema": "public"}
    frame["table"] = draw(st.sampled_from(["t", "t", "t", 'o"dd']))
    if action in "IU":
        frame["columns"] = row(columns)
    if action in "UD":
        frame["identity"] = row(draw(st.sampled_from([["id"], ["id"], ["code"], ["id", "code"]])))
    if action != "T":
        pk = draw(st.sampled_from([*[["id"]] * 5, ["code"], ["id", "part"], []]))
        frame["pk"] = [{"name": name, "type": "bigint"} for name in pk]
    return dumped(frame).encode()


def keys() -> PartitionKeys:
    return PartitionKeys(Wal2Json(), by_primary_key=True, fallback=Fallback.TABLE)


def key_by_reading(known: dict[Relation, KeyColumns], payload: bytes) -> str:
    """The key from a PartitionKeys that has never seen a payload, with the same knowledge of the catalog."""
    fresh = keys()
    fresh._known.update(known)
    return fresh.key(payload, 1)


@given(st.lists(payloads(), min_size=1, max_size=12))
@settings(max_examples=400, deadline=None, derandomize=True, database=None)
def test_scanning_and_reading_agree(frames: Sequence[bytes]) -> None:
    scanning = keys()
    for payload in [*frames, *frames]:
        while True:
            try:
                key = scanning.key(payload, 1)
                break
            except UnknownRelation as unknown:
                scanning.learn(unknown.relation, catalog(payload))

        assert key == key_by_reading(scanning._known, payload)


def catalog(payload: bytes) -> KeyIndexes:
    """The catalog's answer: the primary key that the frame names, and its identity if that is another."""
    change = Wal2Json().row(payload)
    named = [value.name for value in change.identity] if change.identity else []
    primary = [column["name"] for column in json.loads(bytes(change.pk) or b"[]")]
    return KeyIndexes(primary, [] if set(primary) <= set(named) else named)


def test_an_ordinary_change_is_scanned_after_the_first() -> None:
    scanning = keys()
    frame = (
        '{"action":"U","schema":"public","table":"t","columns":[{"name":"id","type":"bigint","value":%d}],'
        '"identity":[{"name":"id","type":"bigint","value":%d}],"pk":[{"name":"id","type":"bigint"}]}'
    )
    first = (frame % (1, 1)).encode()
    try:
        scanning.key(first, 1)
    except UnknownRelation as unknown:
        scanning.learn(unknown.relation, KeyIndexes(["id"]))

    assert scanning.key(first, 1) == "public.t/1"
    assert scanning.scanner.scan((frame % (42, 41)).encode()) == "public.t/42"
    assert scanning.scanner.scan((frame % (42, 41)).replace("bigint", "text").encode()) is None

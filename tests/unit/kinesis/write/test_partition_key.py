from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress

import pytest

from penstock.decoding.wal2json import Wal2Json
from penstock.kinesis.write.partition_key import (
    MAX_KEY_CHARACTERS,
    Fallback,
    KeyedRelation,
    PartitionKeys,
    UnknownRelation,
    choose_columns,
)
from penstock.model.key_indexes import KeyIndexes
from penstock.settings.kinesis import PartitionKeySettings

WAL_START = 0x16_B374D848
WAL_TEXT = "16/B374D848"
ID_PK = ({"name": "id", "type": "integer"},)


def payload(
    action: str = "I",
    *,
    schema: str = "public",
    table: str = "t",
    columns: Mapping[str, object] | None = None,
    identity: Mapping[str, object] | None = None,
    pk: Sequence[Mapping[str, str]] | None = ID_PK,
) -> bytes:
    """A frame as wal2json writes it: no spaces, and members in its order."""
    frame: dict[str, object] = {"action": action, "schema": schema, "table": table}
    for member, values in (("columns", columns), ("identity", identity)):
        if values is not None:
            frame[member] = [{"name": n, "type": "text", "value": v} for n, v in values.items()]
    if pk is not None:
        frame["pk"] = list(pk)
    return json.dumps(frame, separators=(",", ":"), ensure_ascii=False).encode()


def pk(*names: str) -> list[dict[str, str]]:
    """A frame's `pk` member."""
    return [{"name": name, "type": "text"} for name in names]


class Catalog:
    """What the catalog holds now, by table name, and the questions that were asked."""

    def __init__(self, **indexes: KeyIndexes) -> None:
        self.indexes = indexes
        self.asked: list[KeyedRelation] = []

    def key(self, keys: PartitionKeys, frame: bytes) -> str:
        """What the reader does: ask, learn, try again."""
        try:
            return keys.key(frame, WAL_START)
        except UnknownRelation as unknown:
            self.asked.append(unknown.relation)
            keys.learn(unknown.relation, self.indexes.get(unknown.relation.table, KeyIndexes()))
            return keys.key(frame, WAL_START)


def by_primary_key(fallback: Fallback = Fallback.LSN) -> PartitionKeys:
    return PartitionKeys(Wal2Json(), by_primary_key=True, fallback=fallback, static="everything")


def key(frame: bytes, *primary: str, identity: Sequence[str] = (), fallback: Fallback = Fallback.LSN) -> str:
    return Catalog(t=KeyIndexes(primary, identity)).key(by_primary_key(fallback), frame)


@pytest.mark.parametrize(
    ("action", "columns", "identity", "expected"),
    [
        pytest.param("I", {"id": 7, "v": "x"}, None, "public.t/7", id="insert"),
        pytest.param("U", {"id": 7, "v": "y"}, {"id": 7}, "public.t/7", id="update"),
        pytest.param("U", {"id": 8, "v": "y"}, {"id": 7}, "public.t/8", id="key change: the new key"),
        pytest.param("U", {"v": "y"}, {"id": 7}, "public.t/7", id="a key column in TOAST, unchanged"),
        pytest.param("D", None, {"id": 7}, "public.t/7", id="delete"),
    ],
)
def test_one_row_has_one_key_whatever_happens_to_it(
    action: str, columns: Mapping[str, object] | None, identity: Mapping[str, object] | None, expected: str
) -> None:
    assert key(payload(action, columns=columns, identity=identity), "id") == expected


def test_values_stand_in_the_order_of_the_index() -> None:
    row = {"a": 1, "b": "two", "c": 3}

    assert key(payload(columns=row, pk=pk("a", "b", "c")), "c", "a", "b") == "public.t/3,1,two"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        ("a_b-c.d~e", "a_b-c.d~e"),
        ("a,b/c d", "a%2Cb%2Fc%20d"),
        ("%2C", "%252C"),
        ('q"q\\', "q%22q%5C"),
        ("Zoë", "Zo%C3%AB"),
        ("日", "%E6%97%A5"),
        ("٣", "%D9%A3"),
        ("😀", "%F0%9F%98%80"),
        ("", ""),
        ("line\nbreak\0", "line%0Abreak%00"),
        (-5, "-5"),
        (0, "0"),
        (1.5, "1.5"),
        (True, "true"),
        (None, "null"),
    ],
)
def test_values_are_percent_encoded(value: object, text: str) -> None:
    assert key(payload(columns={"id": value}), "id") == f"public.t/{text}"


def test_numbers_are_exact() -> None:
    frame = payload(columns={"id": 0}).replace(b'"value":0', b'"value":12345678901234567890.10')

    assert key(frame, "id") == "public.t/12345678901234567890.10"


def test_bytes_that_are_no_utf8_still_tell_rows_apart() -> None:
    """A SQL_ASCII database hands out what was put in."""
    frame = payload(columns={"id": "x"})

    assert key(frame.replace(b'"value":"x"', b'"value":"\xe9\\n\\"A"'), "id") == "public.t/%E9%0A%22A"
    assert key(frame.replace(b'"value":"x"', b'"value":"\xe8"'), "id") == "public.t/%E8"


def test_names_are_encoded_too() -> None:
    frame = payload(schema="my schema", table="t/x", columns={"id": 1})

    assert Catalog(**{"t/x": KeyIndexes(["id"])}).key(by_primary_key(), frame) == "my%20schema.t%2Fx/1"


def test_a_comma_in_a_value_is_no_border_between_values() -> None:
    rows = [{"a": "1,2", "b": "3"}, {"a": "1", "b": "2,3"}]

    assert len({key(payload(columns=row, pk=pk("a", "b")), "a", "b") for row in rows}) == 2


def test_a_key_is_as_long_as_kinesis_allows() -> None:
    longest = "x" * (MAX_KEY_CHARACTERS - len("public.t/"))

    assert key(payload(columns={"id": longest}), "id") == f"public.t/{longest}"


def test_a_longer_key_is_hashed_and_stays_one_a_row() -> None:
    long_ones = ["x" * 300, "x" * 299 + "y"]

    hashed = [key(payload(columns={"id": value}), "id") for value in long_ones]

    assert all(len(one) == 64 and one.isalnum() for one in hashed)
    assert hashed[0] != hashed[1]
    assert hashed[0] == key(payload("D", identity={"id": long_ones[0]}), "id")


def test_the_length_that_counts_is_that_of_the_encoded_key() -> None:
    assert len(key(payload(columns={"id": "ë" * 100}), "id")) == 64


def test_the_replica_identity_index_counts_for_every_action() -> None:
    """REPLICA IDENTITY USING INDEX: the catalog names other columns than the frame's `pk`."""
    insert = payload(columns={"id": 1, "email": "e"})
    delete = payload("D", identity={"email": "e"})

    assert key(insert, "id", identity=["email"]) == key(delete, "id", identity=["email"]) == "public.t/e"


def test_without_an_index_in_the_catalog_the_frame_is_believed() -> None:
    """The table may be gone by now."""
    assert key(payload(columns={"id": 3})) == "public.t/3"


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(payload(columns={"v": 1}, pk=[]), id="no primary key"),
        pytest.param(payload(columns={"v": 1}, pk=None), id="no pk member"),
        pytest.param(payload(columns={"v": 1}), id="the key is not in the frame"),
        pytest.param(payload("T", pk=None), id="truncate"),
        pytest.param(b'{"action":"I","schema":"public","table":"t","pk":null}', id="a strange pk member"),
    ],
)
def test_a_frame_without_a_key_goes_by_the_fallback(frame: bytes) -> None:
    assert key(frame) == WAL_TEXT
    assert key(frame, fallback=Fallback.TABLE) == "public.t"
    assert key(frame, fallback=Fallback.STATIC) == "everything"


@pytest.mark.parametrize("frame", [b"", b"\xff", b'{"action":"I"', b"[]", b'{"action":"I","table":"\xe9"}'])
def test_a_payload_that_cannot_be_read_goes_by_the_fallback(frame: bytes) -> None:
    assert key(frame, "id") == WAL_TEXT
    assert key(frame, "id", fallback=Fallback.TABLE) == WAL_TEXT, "there is no table to name"
    assert key(frame, "id", fallback=Fallback.STATIC) == "everything"


def test_the_catalog_is_asked_once_a_relation() -> None:
    catalog = Catalog(t=KeyIndexes(["id"]), u=KeyIndexes(["id"]))
    keys = by_primary_key()

    for table in ("t", "u", "t", "u"):
        catalog.key(keys, payload(table=table, columns={"id": 1}))

    assert [relation.table for relation in catalog.asked] == ["t", "u"]


def test_a_changed_primary_key_is_looked_up_again() -> None:
    catalog = Catalog(t=KeyIndexes(["id"]))
    keys = by_primary_key()
    assert catalog.key(keys, payload(columns={"id": 1, "code": "c"})) == "public.t/1"

    catalog.indexes["t"] = KeyIndexes(["code"])
    changed = payload(columns={"id": 1, "code": "c"}, pk=pk("code"))

    assert catalog.key(keys, changed) == "public.t/c"


def test_the_unknown_relation_says_what_to_ask_for() -> None:
    with pytest.raises(UnknownRelation) as raised:
        by_primary_key().key(payload(schema="s", table="t", columns={"id": 1}), WAL_START)

    assert raised.value.relation == KeyedRelation("s", "t", b'[{"name":"id","type":"integer"}]')


@pytest.mark.parametrize(
    ("fallback", "expected"),
    [(Fallback.LSN, WAL_TEXT), (Fallback.TABLE, "public.t"), (Fallback.STATIC, "everything")],
)
def test_fallback_mode_asks_nobody(fallback: Fallback, expected: str) -> None:
    keys = PartitionKeys(Wal2Json(), by_primary_key=False, fallback=fallback, static="everything")

    assert keys.key(payload(columns={"id": 1}), WAL_START) == expected


def test_a_long_table_name_is_hashed_in_the_fallback_too() -> None:
    frame = payload(table="ë" * 60, columns={"id": 1})
    keys = PartitionKeys(Wal2Json(), by_primary_key=False, fallback=Fallback.TABLE)

    assert len(keys.key(frame, WAL_START)) == 64


@pytest.mark.parametrize("fallback", [Fallback.LSN, Fallback.TABLE])
def test_a_frame_without_a_table_has_the_lsn(fallback: Fallback) -> None:
    assert by_primary_key(fallback).fallback(WAL_START) == WAL_TEXT


@pytest.mark.parametrize(
    ("primary", "identity", "index", "is_as_now", "chosen"),
    [
        pytest.param("a", "a", "", True, "a", id="default identity"),
        pytest.param("ba", "ab", "", True, "ba", id="in the order of the primary key"),
        pytest.param("a", "abc", "", True, "a", id="FULL"),
        pytest.param("a", "abc", "c", True, "a", id="FULL then, an index now"),
        pytest.param("a", "ab", "ab", True, "a", id="an index that includes the key"),
        pytest.param("a", "bc", "cb", True, "cb", id="an index: in its order"),
        pytest.param("a", "bc", "cb", False, "cb", id="an index, and a primary key that has changed"),
        pytest.param("a", "bc", "d", True, "bc", id="an index that is another one now"),
        pytest.param("a", "bc", "", True, "bc", id="an index that is gone"),
        pytest.param("", "bc", "cb", True, "cb", id="an index, no primary key"),
        pytest.param("", "abc", "", True, "", id="FULL, no primary key"),
        pytest.param("", "bc", "d", True, "", id="nobody knows whether it was FULL"),
        pytest.param("a", "", "", True, "a", id="insert"),
        pytest.param("a", "", "b", True, "b", id="insert, an index"),
        pytest.param("a", "", "ab", True, "a", id="insert, an index that includes the key"),
        pytest.param("a", "", "b", False, "a", id="insert of before the primary key was changed"),
        pytest.param("", "", "b", True, "b", id="insert, an index, no primary key"),
        pytest.param("", "", "", True, "", id="insert, no key"),
    ],
)
def test_which_columns_are_the_key(
    primary: str, identity: str, index: str, is_as_now: bool, chosen: str
) -> None:
    found = choose_columns(tuple(primary), tuple(identity), tuple(index), is_as_now=is_as_now)

    assert "".join(found) == chosen


def life(row: Mapping[str, object], identity: Sequence[str], *names: str, table: str = "t") -> list[bytes]:
    """Insert, two updates and a delete of one row, from a time when `names` were the primary key."""
    old = {name: row[name] for name in identity}
    return [
        payload("I", table=table, columns=row, pk=pk(*names)),
        payload("U", table=table, columns=row, identity=old, pk=pk(*names)),
        payload("U", table=table, columns=row, identity=old, pk=pk(*names)),
        payload("D", table=table, identity=old, pk=pk(*names)),
    ]


ROW = {"id": 1, "uuid": "u", "part": 7}


@pytest.mark.parametrize(
    ("frames", "now", "expected", "questions"),
    [
        pytest.param(
            [*life(ROW, ["id"], "id"), *life(ROW, ["uuid"], "uuid")],
            KeyIndexes(["uuid"]),
            ["public.t/1"] * 4 + ["public.t/u"] * 4,
            2,
            id="migrated from id to uuid",
        ),
        pytest.param(
            [*life(ROW, ["id"], "id"), *life(ROW, ["uuid"], "uuid")],
            KeyIndexes(["uuid"], ["part"]),
            ["public.t/1"] * 4 + ["public.t/7"] + ["public.t/u"] * 3,
            3,
            id="migrated, and an index chosen afterwards: the insert can't know",
        ),
        pytest.param(
            life(ROW, ["id", "part"], "id", "part"),
            KeyIndexes(["part", "id"]),
            ["public.t/7,1"] * 4,
            1,
            id="columns swapped",
        ),
        pytest.param(life(ROW, ["id"], "id"), KeyIndexes(), ["public.t/1"] * 4, 1, id="dropped"),
        pytest.param(
            [*life(ROW, ["id"], "id"), *life(ROW, ["id", "part"], "id", "part")],
            KeyIndexes(["part", "id"]),
            ["public.t/1"] * 4 + ["public.t/7,1"] * 4,
            2,
            id="a table swapped for one with another key",
        ),
        pytest.param(
            life(ROW, ["uuid"], "id"),
            KeyIndexes(["id"], ["uuid"]),
            ["public.t/u"] * 4,
            1,
            id="an index, then and now",
        ),
        pytest.param(
            [*life(ROW, ["uuid"], "id")[1:], *life(ROW, ["uuid"], "id")],
            KeyIndexes(["id"]),
            ["public.t/u"] * 7,
            1,
            id="an index then, none now",
        ),
    ],
)
def test_a_backlog_keeps_the_keys_of_its_time(
    frames: list[bytes], now: KeyIndexes, expected: list[str], questions: int
) -> None:
    catalog, keys = Catalog(t=now), by_primary_key()

    assert [catalog.key(keys, frame) for frame in frames] == expected
    assert len(catalog.asked) == questions


def test_an_insert_after_its_index_was_dropped_goes_by_the_primary_key() -> None:
    catalog, keys = Catalog(t=KeyIndexes(["id"])), by_primary_key()
    catalog.key(keys, payload("D", identity={"code": "c"}))

    assert catalog.key(keys, payload(columns={"id": 5})) == "public.t/5"


def test_an_update_that_shows_another_identity_is_seen_behind_scanned_inserts() -> None:
    catalog, keys = Catalog(t=KeyIndexes(["id"])), by_primary_key()
    row = {"id": 1, "code": 9}
    assert {catalog.key(keys, payload(columns=row)) for _ in range(3)} == {"public.t/1"}

    assert catalog.key(keys, payload("U", columns=row, identity={"code": 9})) == "public.t/9"


def test_a_truncate_is_no_other_table() -> None:
    """It has no `pk` member: to take that for a lost key would forget what was learnt."""
    catalog, keys = Catalog(t=KeyIndexes(["id"])), by_primary_key()
    catalog.key(keys, payload(columns={"id": 1}))

    assert catalog.key(keys, payload("T", pk=None)) == WAL_TEXT
    assert catalog.key(keys, payload(columns={"id": 2})) == "public.t/2"
    assert len(catalog.asked) == 1


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({}, "public.t/7"),
        ({"PARTITION_KEY_MODE": "fallback", "PARTITION_KEY_FALLBACK": "table"}, "public.t"),
        ({"PARTITION_KEY_FALLBACK": "static", "PARTITION_KEY_STATIC_VALUE": "one"}, "public.t/7"),
    ],
)
def test_keys_are_made_as_the_settings_say(settings: dict[str, str], key: str) -> None:
    keys = PartitionKeys.of(Wal2Json(), PartitionKeySettings.model_validate(settings))
    payload = (
        b'{"action":"I","schema":"public","table":"t","columns":[{"name":"id","type":"integer","value":7}],'
        b'"pk":[{"name":"id","type":"integer"}]}'
    )
    with suppress(UnknownRelation):
        keys.key(payload, 90)
    keys.learn(KeyedRelation("public", "t", b'[{"name":"id","type":"integer"}]'), KeyIndexes(["id"]))
    assert keys.key(payload, 90) == key

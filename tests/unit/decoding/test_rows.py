from __future__ import annotations

import json
import pickle
import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.decoding.rows import (
    ChangeDecoder,
    Column,
    DecodeError,
    LayoutChanged,
    NanRefused,
    RowIncomplete,
    decode_copy,
)
from penstock.decoding.type_map import lake_type
from penstock.model.log_offset import LogOffset

COLUMNS = [
    Column("id", "bigint", not_null=True),
    Column("amount", "numeric(12,2)", not_null=True),
    Column("note", "text"),
    Column("placed", "timestamp with time zone"),
]
TYPES = {column.name: column.type for column in COLUMNS}
AT = LogOffset(0x16B374D848, 4)


def cells(**values: str) -> str:
    """Columns as wal2json writes them: values are JSON text."""
    return ",".join(
        f'{{"name":"{name}","type":"{TYPES[name]}","value":{value}}}' for name, value in values.items()
    )


def frame(action: str, columns: str | None = None, identity: str | None = None) -> bytes:
    text = f'{{"action":"{action}","lsn":"0/1923F50","schema":"public","table":"orders"'
    text += "" if columns is None else f',"columns":[{columns}]'
    text += "" if identity is None else f',"identity":[{identity}]'
    return (text + ',"pk":[{"name":"id","type":"bigint"}]}').encode()


ROW = cells(id="7", amount="1.50", note='"a\\"b\\n"', placed='"2026-01-02 03:04:05+00"')
PLACED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def decoder() -> ChangeDecoder:
    return ChangeDecoder("public.orders", COLUMNS, ["id"], plugin="wal2json")


def decoded(*frames: bytes) -> list[dict[str, Any]]:
    offsets = [LogOffset(AT.tx_offset, 2 * place) for place in range(len(frames))]
    rows: list[dict[str, Any]] = decoder().decode(offsets, frames).to_pylist()
    return [{name.removeprefix("_penstock_"): value for name, value in row.items()} for row in rows]


def change(action: str, op_offset: int, **rest: Any) -> dict[str, Any]:
    nothing = dict.fromkeys(["absent", "old_key", *TYPES])
    return {"tx_offset": AT.tx_offset, "op_offset": op_offset, "action": action, **nothing, **rest}


def test_each_action() -> None:
    changes = decoded(
        frame("I", ROW),
        frame("U", cells(id="7", amount="-0.01", note="null", placed="null"), cells(id="7")),
        frame("D", identity=cells(id="7")),
        frame("T"),
    )

    assert changes == [
        change("insert", 0, id=7, amount=Decimal("1.50"), note='a"b\n', placed=PLACED),
        change("update", 2, id=7, amount=Decimal("-0.01")),
        change("delete", 4, id=7),
        change("truncate", 6),
    ]


def test_no_frames_give_an_empty_batch_of_the_same_schema() -> None:
    batch = decoder().decode([], [])

    assert (batch.num_rows, batch.schema) == (0, decoder().schema)


def test_the_schema_is_what_a_batch_has() -> None:
    batch = decoder().decode([AT], [frame("I", ROW)])

    assert batch.schema == decoder().schema
    assert {field.name: str(field.type) for field in batch.schema} == {
        "_penstock_tx_offset": "int64",
        "_penstock_op_offset": "int64",
        "_penstock_action": "string",
        "_penstock_absent": "list<item: string>",
        "_penstock_old_key": "struct<id: int64>",
        "id": "int64",
        "amount": "decimal128(12, 2)",
        "note": "string",
        "placed": "timestamp[us, tz=UTC]",
    }


def test_an_absent_column_is_named_and_a_null_one_is_not() -> None:
    [update] = decoded(frame("U", cells(id="7", amount="1.50", placed="null"), cells(id="7")))

    assert update == change("update", 0, id=7, amount=Decimal("1.50"), absent=["note"])


def test_an_absent_column_that_identity_has_is_not_absent() -> None:
    old = cells(id="7", amount="0.00", note='"toasted"', placed="null")
    [update] = decoded(frame("U", cells(id="7", amount="1.50"), old))

    assert update == change("update", 0, id=7, amount=Decimal("1.50"), note="toasted")


def test_an_insert_after_a_drop_lacks_the_column() -> None:
    [insert] = decoded(frame("I", cells(id="7", amount="1.50", placed="null")))

    assert insert["absent"] == ["note"]


def test_an_insert_older_than_a_column_has_the_columns_missing_value() -> None:
    columns = [
        Column("id", "bigint"),
        Column("n", "integer", missing="5"),
        Column("b", "boolean", missing="t"),
        Column("t", "text", missing='say "\\n"'),
        Column("later", "text"),
    ]
    old = ChangeDecoder("public.t", columns, ["id"], plugin="wal2json")
    frames = [
        frame("I", '{"name":"id","type":"bigint","value":1}'),
        frame("U", '{"name":"id","type":"bigint","value":1}', '{"name":"id","type":"bigint","value":1}'),
        frame("I", '{"name":"id","type":"bigint","value":2},{"name":"n","type":"integer","value":null}'),
    ]
    insert, update, newer = old.decode([(1, 0), (1, 2), (1, 4)], frames).to_pylist()

    assert (insert["n"], insert["b"], insert["t"]) == (5, True, 'say "\\n"')
    assert insert["_penstock_absent"] == ["later"]
    assert (update["n"], update["_penstock_absent"]) == (None, ["n", "b", "t", "later"])
    assert newer["n"] is None


@pytest.mark.parametrize("new_id", [7, 8])
def test_where_needs_what_an_update_leaves_out(new_id: int) -> None:
    judging = ChangeDecoder(
        "public.orders", COLUMNS, ["id"], filtered=True, must_come=["note"], plugin="wal2json"
    )
    update = frame("U", cells(id=str(new_id), amount="1.50", placed="null"), cells(id="7"))

    with pytest.raises(
        RowIncomplete, match=r"^public.orders at .*: the frame lacks note, so where can't judge"
    ):
        judging.decode([AT], [update])


@pytest.mark.parametrize(
    ("row", "old", "absent"),
    [
        pytest.param(ROW, cells(id="7"), None, id="it is there"),
        pytest.param(
            cells(id="7", amount="1.50", placed="null"),
            cells(id="7", amount="0.00", note='"toasted"', placed="null"),
            None,
            id="the identity is full",
        ),
        pytest.param(
            cells(id="7", amount="1.50", placed="null"),
            cells(id="7", amount="0.00", placed="null"),
            ["note"],
            id="the identity is full, and the column is younger",
        ),
        pytest.param(
            cells(id="7", amount="1.50", note="null"),
            cells(id="7"),
            ["placed"],
            id="what lacks is never left out of a row that has it",
        ),
    ],
)
def test_where_can_judge_an_update(row: str, old: str, absent: list[str] | None) -> None:
    judging = ChangeDecoder(
        "public.orders", COLUMNS, ["id"], filtered=True, must_come=["note"], plugin="wal2json"
    )

    [update] = judging.decode([AT], [frame("U", row, old)]).to_pylist()

    assert update["_penstock_absent"] == absent


def test_an_update_that_may_bring_a_row_in_has_the_missing_values_of_younger_columns() -> None:
    columns = [
        Column("id", "bigint"),
        Column("n", "integer", missing="5"),
        Column("t", "text", missing="young"),
        Column("later", "text"),
    ]
    judging = ChangeDecoder(
        "public.t", columns, ["id"], filtered=True, must_come=["t", "later"], plugin="wal2json"
    )
    row, toasted = '{"name":"id","type":"bigint","value":1}', '{"name":"t","type":"text","value":"toasted"}'
    [update] = judging.decode([AT], [frame("U", row, f"{row},{toasted}")]).to_pylist()

    assert (update["n"], update["t"], update["_penstock_absent"]) == (5, "toasted", ["later"])


def test_a_key_change_is_a_delete_and_an_insert_that_remembers_the_old_key() -> None:
    before, gone, came, after = decoded(
        frame("I", ROW),
        frame("U", cells(id="8", amount="1.50", placed="null"), cells(id="7")),
        frame("D", identity=cells(id="9")),
    )

    assert gone == change("delete", 2, id=7)
    assert came == change("insert", 3, id=8, amount=Decimal("1.50"), absent=["note"], old_key={"id": 7})
    assert (before["op_offset"], before["old_key"]) == (0, None)
    assert (after["op_offset"], after["old_key"]) == (4, None)


def test_a_change_of_one_part_of_a_key_is_a_key_change() -> None:
    wide = ChangeDecoder("public.orders", COLUMNS, ["note", "id"], plugin="wal2json")
    old = cells(id="7", note='"a"')
    batch = wide.decode(
        [AT], [frame("U", cells(id="7", amount="1.50", note='"b"', placed="null"), old)]
    ).to_pylist()

    assert [(row["_penstock_action"], row["note"], row["id"]) for row in batch] == [
        ("delete", "a", 7),
        ("insert", "b", 7),
    ]
    assert batch[1]["_penstock_old_key"] == {"note": "a", "id": 7}


def test_with_full_identity_only_the_key_counts_as_one() -> None:
    old = cells(id="7", amount="9.99", note='"x"', placed="null")
    [update] = decoded(frame("U", ROW, old))

    assert (update["action"], update["old_key"], update["amount"]) == ("update", None, Decimal("1.50"))


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b'{"action":"I","columns":[', id="cut off"),
        pytest.param(frame("I", ROW.replace('"text"', '""S x"."My type""')), id="a type name with quotes"),
        pytest.param(frame("I", '{"name":"id","value":7}'), id="no types"),
        pytest.param(b'{"action":"I","columns":[{"name":"\xe9"}]}', id="not UTF-8"),
    ],
)
def test_an_unreadable_payload(payload: bytes) -> None:
    with pytest.raises(DecodeError, match=r"^public\.orders at 16/B374D848:4: the payload is not"):
        decoder().decode([AT], [payload])


@pytest.mark.parametrize(
    ("bad", "kind", "message"),
    [
        pytest.param(frame("M"), DecodeError, "the frame is no insert", id="action"),
        pytest.param(frame("D", identity=cells(note='"x"')), RowIncomplete, "key's column id", id="delete"),
        pytest.param(frame("U", ROW, cells(note='"x"')), RowIncomplete, "key's column id", id="update"),
        pytest.param(frame("I", cells(note='"x"')), RowIncomplete, "key's column id", id="insert"),
    ],
)
def test_a_frame_that_tells_no_row(bad: bytes, kind: type[DecodeError], message: str) -> None:
    with pytest.raises(kind, match=message):
        decoder().decode([AT], [bad])


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("id", "9223372036854775808"),
        ("id", '"12,34"'),
        ("amount", "12345678901.00"),
        ("amount", "1.505"),
        ("note", "12345"),
        ("note", '"\udce9"'),
        ("placed", '"2026-02-30 00:00:00+00"'),
        ("placed", '"0005-02-29 00:00:00+00 BCE"'),
        ("placed", '"294276-12-31 23:59:59+00"'),
        ("placed", '"+infinity"'),
    ],
)
def test_a_value_that_does_not_fit_is_placed_and_not_shown(column: str, value: str) -> None:
    values = {"id": "1", "amount": "1.00", "note": '"n"', "placed": "null", column: value}
    bad = frame("I", cells(**values).encode("utf-8", "surrogateescape").decode("latin-1"))
    bad = bad.decode().encode("latin-1")

    with pytest.raises(DecodeError) as refused:
        decoder().decode([LogOffset(1, 0), AT], [frame("I", ROW), bad])

    said = str(refused.value)
    assert said.startswith(f"public.orders at 16/B374D848:4: column {column} ({TYPES[column]}): ")
    assert value.strip('"') not in said
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__


def test_a_null_that_may_be_nan_is_refused_where_null_is_impossible() -> None:
    lost = frame("I", cells(id="7", amount="null", note="null", placed="null"))

    with pytest.raises(DecodeError, match=r"column amount \(numeric\(12,2\)\) is NOT NULL"):
        decoder().decode([AT], [lost])
    decoder().decode([AT], [frame("D", identity=cells(id="7"))])


NAN_FIX = re.escape(
    """. Fix: change the rows that SELECT * FROM public.orders WHERE "amount" = 'NaN' finds; or, if the"""
    """ column is not of the key, write numeric_nan = "null" into the shape, and start again or send SIGHUP"""
)
WITH_NULLS = [column._replace(nan_as_null=True) for column in COLUMNS]


class TestNanInADecimal:
    def test_it_is_placed_and_the_way_out_is_said(self) -> None:
        bad = frame("I", cells(id="7", amount='"NaN"', note="null", placed="null"))

        with pytest.raises(
            NanRefused, match=rf"^public\.orders at 16/B374D848:4: column amount .*{NAN_FIX}$"
        ):
            decoder().decode([LogOffset(1, 0), AT], [frame("I", ROW), bad])
        with pytest.raises(NanRefused, match=rf"^public\.orders in its snapshot: column amount .*{NAN_FIX}$"):
            decode_copy("public.orders", COLUMNS, b"7\tNaN\t\\N\t\\N\n")

    def test_a_null_that_must_be_nan(self) -> None:
        lost = frame("I", cells(id="7", amount="null", note="null", placed="null"))

        with pytest.raises(NanRefused, match=rf"NOT NULL and null came.*{NAN_FIX}$"):
            decoder().decode([AT], [lost])

    @pytest.mark.parametrize("value", ['"NaN"', "null", '"-Infinity"'])
    def test_null_stands_for_it_if_the_shape_says_so(self, value: str) -> None:
        came = frame("I", cells(id="7", amount=value, note='"NaN"', placed="null"))

        [row] = (
            ChangeDecoder("public.orders", WITH_NULLS, ["id"], plugin="wal2json")
            .decode([AT], [came])
            .to_pylist()
        )

        assert (row["id"], row["amount"], row["note"], row["_penstock_absent"]) == (7, None, "NaN", None)

    def test_null_stands_for_it_in_a_copy_too(self) -> None:
        rows = decode_copy("public.orders", WITH_NULLS, b"7\tNaN\tNaN\t\\N\n8\t1.50\t\\N\t\\N\n").to_pylist()

        assert [(row["amount"], row["note"]) for row in rows] == [(None, "NaN"), (Decimal("1.50"), None)]

    def test_what_is_wrong_otherwise_stays_wrong(self) -> None:
        with pytest.raises(DecodeError) as refused:
            decode_copy("public.orders", WITH_NULLS, b"7\t1.505\t\\N\t\\N\n")
        assert not isinstance(refused.value, NanRefused)


def test_a_new_column_or_type_is_a_changed_layout() -> None:
    extra = ROW + ',{"name":"extra","type":"integer","value":1}'
    widened = ROW.replace("numeric(12,2)", "numeric(14,2)")

    with pytest.raises(LayoutChanged, match=r"16/B374D848:4: column extra \(integer\) is new"):
        decoder().decode([AT], [frame("I", extra)])
    with pytest.raises(LayoutChanged, match=r"amount was numeric\(12,2\) and is numeric\(14,2\)"):
        decoder().decode([AT], [frame("I", widened)])


def test_a_type_that_the_lake_holds_alike_changes_nothing() -> None:
    [row] = decoder().decode([AT], [frame("I", ROW.replace('"text"', '"character varying(9)"'))]).to_pylist()

    assert row["note"] == 'a"b\n'


def test_a_number_kept_as_text_is_not_text() -> None:
    free = ChangeDecoder(
        "public.t", [Column("id", "bigint"), Column("note", "numeric")], ["id"], plugin="wal2json"
    )

    with pytest.raises(LayoutChanged, match="note was numeric and is text"):
        free.decode([AT], [frame("I", cells(id="1", note='"1,2"'))])


def test_columns_that_nobody_asked_for_are_passed_over() -> None:
    narrow = ChangeDecoder("public.orders", COLUMNS[:2], ["id"], others=["note", "placed"], plugin="wal2json")
    [row] = narrow.decode([AT], [frame("U", ROW, cells(id="7", note='"x"'))]).to_pylist()

    assert (row["id"], row["amount"], row["_penstock_absent"]) == (7, Decimal("1.50"), None)
    assert "note" not in row
    renamed = cells(id="7", amount="1.50", note="null").replace('"note"', '"new name"')
    with pytest.raises(LayoutChanged, match="column new name"):
        narrow.decode([AT], [frame("I", renamed)])


def test_numbers_in_quotes_are_numbers() -> None:
    """As in domains, and with numeric-data-types-as-string."""
    columns = [Column("id", "quantity", "integer"), Column("ratio", "double precision")]
    payload = frame("I", '{"name":"id","type":"quantity","value":"5"},' + json.dumps(
        {"name": "ratio", "type": "double precision", "value": "-Infinity"}
    ))  # fmt: skip
    [row] = ChangeDecoder("public.t", columns, ["id"], plugin="wal2json").decode([AT], [payload]).to_pylist()

    assert (row["id"], row["ratio"]) == (5, float("-inf"))


def test_errors_survive_a_worker() -> None:
    for error in (DecodeError("a sentence"), LayoutChanged("a sentence")):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again)) == (type(error), "a sentence")


def test_copy() -> None:
    data = b"7\t1.50\ta\\tb\\\\N\\n\t2026-01-02 03:04:05+00\n8\t0.00\t\\N\t\\N\n9\t0.01\t\t\\N\n"
    batch = decode_copy("public.orders", COLUMNS, data)

    assert batch.schema == pa.schema([decoder().schema.field(column.name) for column in COLUMNS])
    assert batch.to_pylist() == [
        {"id": 7, "amount": Decimal("1.50"), "note": "a\tb\\N\n", "placed": PLACED},
        {"id": 8, "amount": Decimal("0.00"), "note": None, "placed": None},
        {"id": 9, "amount": Decimal("0.01"), "note": "", "placed": None},
    ]


@pytest.mark.parametrize("text", ["\ufeff", "\ufeff\ufeff", "\ufeffx", "x\ufeff", ""])
def test_copy_leaves_a_byte_order_mark_alone(text: str) -> None:
    columns = [Column("a", "text"), Column("b", "text")]
    data = f"{text}\t{text}\n".encode() * 2

    assert decode_copy("public.t", columns, data).to_pylist() == [{"a": text, "b": text}] * 2


def test_copy_of_one_empty_text_and_of_nothing() -> None:
    assert decode_copy("public.t", COLUMNS[2:3], b"\n").to_pylist() == [{"note": ""}]
    assert decode_copy("public.t", COLUMNS, b"").num_rows == 0


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"7\t1.505\t\\N\t\\N\n", r"in its snapshot: column amount \(numeric\(12,2\)\)"),
        (b"7\t1.50\n", "does not have 4 columns"),
        (b"7\t1.50\t\xe9\t\\N\n", "does not have 4 columns of UTF-8"),
    ],
)
def test_copy_that_does_not_fit(data: bytes, message: str) -> None:
    with pytest.raises(DecodeError, match=message) as refused:
        decode_copy("public.orders", COLUMNS, data)
    assert "1.505" not in str(refused.value)


@pytest.mark.parametrize(
    ("declared", "spark"),
    [
        ("numeric(38,38)", "decimal(38,38)"),
        ("numeric(39,0)", "string"),
        ("numeric(38,-1)", "string"),
        ("numeric(2,39)", "string"),
        ("timestamp(0) with time zone", "timestamp"),
        ("timestamp without time zone[]", "string"),
        ("public.integer", "string"),
        ("something.new", "string"),
    ],
)
def test_type_names(declared: str, spark: str) -> None:
    assert lake_type(declared).spark == spark


@pytest.mark.parametrize("named", ["app.price", "price", "numeric(10,2)"])
def test_a_domains_name_may_lack_its_schema(named: str) -> None:
    """A marked stream has names as capture's search_path makes them."""
    columns = [Column("id", "bigint"), Column("price", "app.price", base="numeric(10,2)")]
    payload = frame(
        "I", f'{{"name":"id","type":"bigint","value":1}},{{"name":"price","type":"{named}","value":"1.5"}}'
    )
    [row] = ChangeDecoder("public.t", columns, ["id"], plugin="wal2json").decode([AT], [payload]).to_pylist()

    assert row["price"] == Decimal("1.50")


@pytest.mark.parametrize("named", ["cost", "other.price", "text", "app"])
def test_another_name_is_another_type(named: str) -> None:
    columns = [Column("id", "bigint"), Column("price", "app.price", base="numeric(10,2)")]
    payload = frame(
        "I", f'{{"name":"id","type":"bigint","value":1}},{{"name":"price","type":"{named}","value":"1.5"}}'
    )
    with pytest.raises(LayoutChanged, match=f"was app.price and is {named}"):
        ChangeDecoder("public.t", columns, ["id"], plugin="wal2json").decode([AT], [payload])


def test_a_quoted_domain_is_known_by_its_bare_name() -> None:
    columns = [Column("id", "bigint"), Column("price", '"My.app"."A price"', base="numeric(10,2)")]
    payload = frame(
        "I", '{"name":"id","type":"bigint","value":1},{"name":"price","type":"A price","value":"2"}'
    )
    [row] = ChangeDecoder("public.t", columns, ["id"], plugin="wal2json").decode([AT], [payload]).to_pylist()

    assert row["price"] == Decimal("2.00")

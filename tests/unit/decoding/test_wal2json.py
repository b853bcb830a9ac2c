from __future__ import annotations

import pytest

from penstock.decoding.decoder import Unreadable
from penstock.decoding.wal2json import Wal2Json, replication_options
from penstock.model.change import Action
from penstock.model.relation import Relation

DECODER = Wal2Json()

UPDATE = (
    b'{"action":"U","timestamp":"2026-01-01 00:00:00+00","lsn":"0/1923F50","schema":"public","table":"t",'
    b'"columns":[{"name":"id","type":"bigint","value":12345678901234567890123},'
    b'{"name":"v","type":"text","value":"a\\"b"},{"name":"n","type":"numeric","value":null}],'
    b'"identity":[{"name":"id","type":"bigint","value":7}],"pk":[{"name":"id","type":"bigint"}]}'
)
DAMAGED = [
    pytest.param(b"", id="empty"),
    pytest.param(b'{"action":"I","schema":"public"', id="cut off"),
    pytest.param(b'{"action":"I","type":"my"type"}', id="a type name with a quote"),
    pytest.param(b"[]", id="not an object"),
    pytest.param(b'{"action":"I","schema":"\xe9"}', id="not UTF-8"),
    pytest.param(b'{"action":"I","schema":7}', id="a number for a name"),
]


@pytest.mark.parametrize(
    ("payload", "action"),
    [
        (b'{"action":"B","lsn":"0/1"}', Action.BEGIN),
        (b'{"action":"C","lsn":"0/1"}', Action.COMMIT),
        (b'{"action":"M","transactional":false}', Action.MESSAGE),
        (UPDATE, Action.UPDATE),
        (b'{"action":"T"}', Action.TRUNCATE),
        (b'{"action":"', None),
        (b'{"action":"X"}', None),
        (b'{"lsn":"0/1","action":"B"}', None),
        (b'{"change":[]}', None),
        (b"\xff\xfe", None),
        (b"", None),
    ],
)
def test_action(payload: bytes, action: Action | None) -> None:
    assert DECODER.action(payload) is action


def test_a_change_keeps_names_as_text_and_values_as_json() -> None:
    change = DECODER.row(UPDATE)

    assert (change.schema, change.table) == ("public", "t")
    assert [(column.name, bytes(column.value)) for column in change.columns] == [
        ("id", b"12345678901234567890123"),
        ("v", b'"a\\"b"'),
        ("n", b"null"),
    ]
    assert [(column.name, bytes(column.value)) for column in change.identity] == [("id", b"7")]
    assert bytes(change.pk) == b'[{"name":"id","type":"bigint"}]'


def test_what_a_frame_leaves_out_is_empty() -> None:
    truncate = DECODER.row(b'{"action":"T","schema":"public","table":"t"}')

    assert (truncate.columns, truncate.identity, bytes(truncate.pk)) == ([], [], b"")


def test_values_may_be_any_bytes_in_a_sql_ascii_database() -> None:
    change = DECODER.row(b'{"schema":"s","table":"t","columns":[{"name":"id","value":"\xe9"}]}')

    assert bytes(change.columns[0].value) == b'"\xe9"'


@pytest.mark.parametrize("payload", DAMAGED)
def test_a_damaged_change_is_unreadable(payload: bytes) -> None:
    with pytest.raises(Unreadable):
        DECODER.row(payload)


def test_a_boundary_has_the_commit_lsn_and_the_end_lsn() -> None:
    boundary = DECODER.transaction(b'{"action":"B","xid":9,"lsn":"0/1925708","nextlsn":"1/1925DE0"}')

    assert (boundary.commit_lsn, boundary.end_lsn) == (0x1925708, 0x1_01925DE0)
    assert boundary.committed_at is None


@pytest.mark.parametrize(
    ("timestamp", "seconds"),
    [
        ("2026-11-17 11:47:02.123456+00", 1794916022.123456),
        ("2026-11-17 11:47:02+05:30", 1794896222.0),
        ("2026-11-17 11:47:02.1-03", 1794926822.1),
    ],
)
def test_a_boundary_says_when_it_was_committed(timestamp: str, seconds: float) -> None:
    payload = f'{{"action":"B","timestamp":"{timestamp}","lsn":"0/1"}}'.encode()

    assert Wal2Json().transaction(payload).committed_at == pytest.approx(seconds, abs=1e-6)


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b'{"action":"B","lsn":"0/1"', id="cut off"),
        pytest.param(b'{"action":"B","lsn":1,"nextlsn":2}', id="numbers for LSNs"),
        pytest.param(b'{"action":"B","lsn":"\xff"}', id="not UTF-8"),
        pytest.param(b"", id="empty"),
    ],
)
def test_a_damaged_boundary_is_unreadable(payload: bytes) -> None:
    with pytest.raises(Unreadable):
        DECODER.transaction(payload)


def test_a_boundary_has_no_lsns_while_include_lsn_is_off() -> None:
    boundary = DECODER.transaction(b'{"action":"C"}')

    assert (boundary.commit_lsn, boundary.end_lsn) == (None, None)


def test_a_boundary_is_read_by_itself_whatever_came_before() -> None:
    decoder, text = (
        Wal2Json(),
        '{"action":"%s","timestamp":"2026-11-17 11:47:0%d+00","lsn":"0/%X","nextlsn":"0/%X"}',
    )
    ends = [
        decoder.transaction((text % said).encode())
        for said in [("B", 2, 1, 9), ("C", 2, 1, 9), ("B", 2, 1, 8), ("C", 3, 1, 8), ("B", 3, 2, 8)]
    ]

    assert ends[0] == ends[1]
    assert [(each.commit_lsn, each.end_lsn) for each in ends[1:]] == [(1, 9), (1, 8), (1, 8), (2, 8)]
    assert [each.committed_at for each in ends[2:]] == [1794916022.0, 1794916023.0, 1794916023.0]
    for damaged in (b'{"action":"B', b'{"action":"C","lsn":"0/2","nextlsn":"0/8"'):
        with pytest.raises(Unreadable):
            decoder.transaction(damaged)


def test_a_boundary_with_a_strange_lsn_is_refused() -> None:
    for payload in (b'{"action":"B","lsn":"here","nextlsn":"0/1"}', b'{"action":"B","nextlsn":"there"}'):
        with pytest.raises(Unreadable):
            DECODER.transaction(payload)


def test_a_summary_names_the_change_and_holds_no_values() -> None:
    summary = DECODER.summary(UPDATE)

    assert (summary.action, summary.schema, summary.table, summary.lsn) == ("U", "public", "t", "0/1923F50")
    assert summary.__struct_fields__ == ("action", "schema", "table", "lsn")


@pytest.mark.parametrize("payload", [*DAMAGED, b'{"action":"I","schema":"public","table":"caf\xe9"}'])
def test_a_damaged_payload_has_an_empty_summary(payload: bytes) -> None:
    summary = DECODER.summary(payload)

    assert (summary.action, summary.schema, summary.table, summary.lsn) == (None, None, None, None)


@pytest.mark.parametrize(
    ("pk", "names"),
    [
        (b'[{"name":"b","type":"text"},{"name":"a","type":"integer"}]', ("b", "a")),
        (b"[]", ()),
        (b"", ()),
        (b"null", ()),
        (b'[{"type":"text"}]', ()),
        (b'[{"name":"\xe9"}]', ()),
    ],
)
def test_the_columns_of_the_primary_key(pk: bytes, names: tuple[str, ...]) -> None:
    assert DECODER.key_columns(pk) == names


def test_options_are_what_wal2json_calls_them() -> None:
    options = replication_options(include_timestamp=True, include_lsn=True, include_pk=True)

    assert options == {
        "format-version": "2",
        "include-transaction": "true",
        "include-timestamp": "true",
        "include-lsn": "true",
        "include-pk": "true",
        "include-xids": "false",
        "include-types": "true",
    }


def test_options_that_are_off_say_so_and_transactions_are_never_off() -> None:
    options = replication_options(
        include_timestamp=False, include_lsn=False, include_pk=False, include_xids=True, include_types=False
    )

    assert {name for name, value in options.items() if value == "false"} == {
        "include-timestamp",
        "include-lsn",
        "include-pk",
        "include-types",
    }
    assert (options["include-transaction"], options["include-xids"]) == ("true", "true")


def test_options_that_old_servers_do_not_know_are_named_only_when_they_are_on() -> None:
    usual = replication_options(include_timestamp=True, include_lsn=True, include_pk=True)

    options = replication_options(
        include_timestamp=True,
        include_lsn=True,
        include_pk=True,
        numeric_as_string=True,
        add_tables="public.a,public.b",
        filter_tables="*.tmp",
    )

    assert options == usual | {
        "numeric-data-types-as-string": "true",
        "add-tables": "public.a,public.b",
        "filter-tables": "*.tmp",
    }


@pytest.mark.parametrize(
    ("payload", "relation"),
    [
        (UPDATE, Relation("public", "t")),
        (
            b'{"action":"I","schema":"a\\"b","table":"My \\\\ table","columns":[',
            Relation('a"b', "My \\ table"),
        ),
        (b'{"action":"T","schema":"public","table":"t"}', Relation("public", "t")),
        (b'{"action":"I","schema":"public"', None),
        (b'{"action":"I","schema":"public","table":"caf\xe9"}', None),
        (b'{"action":"I","schema":"caf\xe9","table":"t"}', None),
        (b'{"action":"I","schema":"public","table":"\\x"}', None),
        (b"", None),
    ],
)
def test_the_relation_is_read_however_damaged_the_rest_is(payload: bytes, relation: Relation | None) -> None:
    for _ in range(2):
        assert DECODER.relation(payload) == relation


def test_the_columns_are_those_of_the_new_row_or_else_of_the_identity() -> None:
    delete = b'{"action":"D","identity":[{"name":"id","type":"bigint","value":7}]}'

    assert DECODER.columns(UPDATE) == [("id", "bigint"), ("v", "text"), ("n", "numeric")]
    assert DECODER.columns(delete) == [("id", "bigint")]
    assert DECODER.columns(b'{"action":"T"}') == []


@pytest.mark.parametrize("payload", [DAMAGED[0], DAMAGED[1], DAMAGED[2], DAMAGED[3]])
def test_a_damaged_payload_has_no_columns(payload: bytes) -> None:
    assert DECODER.columns(payload) is None


@pytest.mark.parametrize(
    ("printed", "framed", "unreadable"),
    [
        ("integer", "integer", False),
        ("numeric(12,2)", "numeric(12,2)", False),
        ('"char"', "char", False),
        ('"char"[]', '"char"[]', False),
        ('"Odd Type"', "Odd Type", False),
        ('public."Odd Type"', 'public."Odd Type"', False),
        ('"Other one".plain', '"Other one".plain', True),
        ('"Other one"."Odd"', '"Other one"."Odd"', True),
        ('"Other one".plain[]', '"Other one".plain[]', False),
        ('"q""q"', '"q""q"', True),
        ('"back\\slash"', '"back\\slash"', True),
    ],
)
def test_types_in_frames(printed: str, framed: str, unreadable: bool) -> None:
    assert (DECODER.frame_type(printed), DECODER.is_unreadable(printed)) == (framed, unreadable)

from __future__ import annotations

import pytest
from psycopg.errors import Diagnostic
from structlog.testing import capture_logs

from penstock.decoding.wal2json import Wal2Json
from penstock.model.relation import Relation
from penstock.postgres.stream.notices import NoticeAlarm


class Notice(Diagnostic):
    """A notice with nothing but its sentence: real ones live in a libpq result."""

    def __init__(self, sentence: str | None) -> None:
        self._sentence = sentence

    @property
    def message_primary(self) -> str | None:
        return self._sentence


class Count:
    def __init__(self) -> None:
        self.dropped = 0
        self.tables: set[Relation] = set()

    def add(self, relation: Relation) -> None:
        self.dropped += 1
        self.tables.add(relation)


@pytest.mark.parametrize("action", ["UPDATE", "DELETE"])
def test_a_dropped_change_is_counted_and_its_table_is_said(action: str) -> None:
    count = Count()

    with capture_logs() as said:
        NoticeAlarm(Wal2Json().left_out, count.add)(
            Notice(f'no tuple identifier for {action} in table "public"."My table"')
        )

    assert count.dropped == 1
    (line,) = said
    assert (line["log_level"], line["event"]) == ("error", "changes_dropped_by_server")
    assert line["table"] == 'public."My table"'
    assert count.tables == {("public", "My table")}
    assert "REPLICA IDENTITY" in line["fix"]


def test_each_is_counted_and_each_table_is_said_once() -> None:
    count = Count()
    alarm = NoticeAlarm(Wal2Json().left_out, count.add)

    with capture_logs() as said:
        for table in ('"public"."a"', '"public"."b"', '"public"."a"'):
            for action in ("UPDATE", "DELETE"):
                alarm(Notice(f"no tuple identifier for {action} in table {table}"))

    assert count.dropped == 6
    assert [line["table"] for line in said] == ["public.a", "public.b"]


@pytest.mark.parametrize("sentence", [None, "", "logical decoding found consistent point", "no tuple"])
def test_other_notices_are_nothing(sentence: str | None) -> None:
    count = Count()

    with capture_logs() as said:
        NoticeAlarm(Wal2Json().left_out, count.add)(Notice(sentence))

    assert (count.dropped, said) == (0, [])

"""The columns of a table in a marked stream, by the newest changes that tell them."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from penstock.decoding.rows import Column
from penstock.kinesis.marked.manifest import ACTION, Manifest, ShardRange, TableMark, encode, partition_key
from penstock.kinesis.marked.prefix import MarkPrefix
from penstock.kinesis.read.errors import StreamReadError
from penstock.model.stream_position import History, StreamPosition
from penstock.sources import marked_driver
from penstock.sources.marked_driver import MarkedDriver
from penstock.sources.marked_query import MarkedQuery
from penstock.sources.marked_rows import Typed
from tests.stream_in_memory import StreamInMemory

KEY = partition_key("etl")
BY = "0123456789ab"
ID = ("id", "integer")
NOTE = ("note", "text")


def change(action: str, columns: Any = (), identity: Any = ()) -> dict[str, Any]:
    """What wal2json writes of a row."""
    found: dict[str, Any] = {"action": action, "schema": "public", "table": "t"}
    for member, cells in (("columns", columns), ("identity", identity)):
        if cells:
            found[member] = [{"name": name, "type": kind, "value": 1} for name, kind in cells]
    if action != "T":
        found["pk"] = [{"name": "id", "type": "integer"}]
    return found


INSERT = change("I", [ID, NOTE])
UPDATE = change("U", [ID], [ID])
DELETE = change("D", identity=[ID])
TRUNCATE = change("T")


class Written:
    """A marked stream, with a manifest for each transaction of one change, a second apart."""

    def __init__(self, **more: str) -> None:
        self.stream = StreamInMemory()
        self._prefix = MarkPrefix(History(1, {}), BY)
        self._lsn = 0
        options = {"kinesis.streamName": "shop", "kinesis.region": "eu-west-1", "slot": "etl", **more}
        stream = self.stream

        class Query(MarkedQuery):
            def open(self, stream_name: str | None = None) -> Any:
                return stream

        self.driver = MarkedDriver(Query(*MarkedQuery.parse({"table": "public.t", **options})))

    def put(self, *changes: dict[str, Any]) -> None:
        shard = self.stream.open_shard_of(KEY)
        for each in changes:
            self.stream.pass_time(timedelta(seconds=1))
            self._lsn += 10
            data = self._prefix.put(json.dumps(each, separators=(",", ":")).encode(), self._lsn, 0)
            assert data is not None
            number = str(self.stream.put(shard, data))
            manifest = Manifest(
                ACTION,
                "7",
                "etl",
                BY,
                str(StreamPosition(1, self._lsn)),
                str(StreamPosition(1, self._lsn + 10)),
                1,
                len(data),
                {shard: ShardRange(number, number, 1)},
                {"public.t": TableMark(1, None)},
            )
            self.stream.put(shard, encode(manifest), KEY)


@pytest.fixture
def written() -> Written:
    return Written()


ALL = Typed((Column(*ID), Column(*NOTE)), ("id",))


@pytest.mark.parametrize("minutes", [0, 5, 60])
@pytest.mark.parametrize("told_by", [DELETE, TRUNCATE])
def test_deletes_and_truncates_tell_no_columns(
    written: Written, told_by: dict[str, Any], minutes: int
) -> None:
    written.put(INSERT)
    written.stream.pass_time(timedelta(minutes=minutes))
    written.put(*[told_by] * 30)
    assert written.driver.look() == ALL


def test_a_few_manifests_are_enough(written: Written) -> None:
    written.put(*[INSERT] * 50)
    asked = len(written.stream.calls)
    assert written.driver.look() == ALL
    assert len(written.stream.calls) - asked <= 6


def test_a_stream_that_has_only_deletes_has_only_the_key(written: Written) -> None:
    written.put(*[DELETE] * 6)
    assert written.driver.look() == Typed((Column(*ID),), ("id",))


@pytest.mark.parametrize("changes", [[], [TRUNCATE] * 6])
def test_where_nothing_tells_it_is_said(written: Written, changes: list[Any]) -> None:
    written.put(*changes)
    with pytest.raises(StreamReadError, match=r"there are no changes of public.t, .* \.schema"):
        written.driver.look()


def test_the_search_has_an_end(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marked_driver, "MOST_LOOKED_AT", 20)
    written.put(INSERT, *[DELETE] * 20)
    with pytest.raises(StreamReadError, match="the 20 newest manifests have only deletes"):
        written.driver.look()


def test_manifests_whose_records_are_gone_tell_nothing(written: Written) -> None:
    written.put(INSERT, INSERT)
    written.stream.pass_time(timedelta(minutes=1))
    written.put(UPDATE)
    records = written.stream.held[written.stream.open_shard_of(KEY)].records
    records[:] = [
        each for each in records if each.partition_key == KEY or each.sequence > records[3].sequence
    ]
    assert written.driver.look() == Typed((Column(*ID),), ("id",))


def test_a_column_has_its_newest_type(written: Written) -> None:
    written.put(change("I", [("id", "integer"), NOTE]), change("I", [("id", "bigint"), NOTE]), DELETE)
    written.put(change("U", [("id", "bigint")], [("id", "bigint")]))
    assert written.driver.look() == Typed((Column("id", "bigint"), Column(*NOTE)), ("id",))


def test_what_can_not_be_read_tells_nothing(written: Written) -> None:
    written.put(INSERT, {"action": "I", "schema": "public", "table": "t", "columns": 7})
    assert written.driver.look() == ALL

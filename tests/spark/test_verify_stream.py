"""`penstock verify --stream`: a stream that capture wrote is equal to Postgres, and a spoilt one isn't."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from penstock.kinesis.marked.manifest import Manifest, ShardRange, decode, encode, partition_key
from penstock.kinesis.marked.prefix import MarkPrefix
from penstock.lake.comparison import Counts, Difference, Verdict
from penstock.lake.errors import CannotCompare
from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from penstock.model.relation import Relation
from penstock.model.stream_position import History, StreamPosition
from penstock.settings.loading import load_capture_settings
from penstock.shapes.verify.report import ShapeResult
from penstock.shapes.verify.stream_command import StreamRun, verify_stream
from tests.servers.capture_site import CaptureSite
from tests.servers.shapes_fixtures import MASTER, Started

LONG = "repeat(md5(id::text), 400)"
OLD = f"""
CREATE TABLE orders (id int PRIMARY KEY, amount numeric(12,2), note text, d float8);
ALTER TABLE orders ALTER note SET STORAGE EXTERNAL;
INSERT INTO orders SELECT id, id, {LONG}, id FROM generate_series(1, 40) id;
CREATE TABLE emptied (id int PRIMARY KEY, v text);
INSERT INTO emptied VALUES (1, 'old'), (2, 'old');
CREATE TABLE keyless (v int); ALTER TABLE keyless REPLICA IDENTITY FULL;
INSERT INTO keyless VALUES (1), (2), (3);
CREATE TABLE silent (v int);
CREATE TABLE untouched (id int PRIMARY KEY); INSERT INTO untouched VALUES (1);
"""
NEW = f"""
UPDATE orders SET amount = -amount WHERE id <= 10;
UPDATE orders SET id = id + 100 WHERE id BETWEEN 5 AND 8;
UPDATE orders SET id = id + 100 WHERE id = 105;
UPDATE orders SET d = '-0', amount = 7 WHERE id = 106;
INSERT INTO orders SELECT id, NULL, {LONG}, 0.5 FROM generate_series(51, 60) id;
UPDATE orders SET id = id + 1000, d = 1 WHERE id = 52;
DELETE FROM orders WHERE id IN (9, 10, 60);
INSERT INTO orders VALUES (60, 1, 'again', 0);
INSERT INTO emptied VALUES (3, 'gone');
TRUNCATE emptied;
INSERT INTO emptied VALUES (1, 'new'), (4, 'new');
DELETE FROM keyless WHERE v = 1; INSERT INTO keyless VALUES (4), (5); UPDATE keyless SET v = 6 WHERE v = 5;
INSERT INTO silent VALUES (1);
"""

Verify = Callable[..., dict[str, ShapeResult]]


@pytest.fixture
def site(postgres: PrivatePostgres, database: str, kinesis: LocalKinesis, stream: str) -> CaptureSite:
    return CaptureSite(
        postgres, database, kinesis, stream, KINESIS_MARKED_STREAM="true", KINESIS_MARK_INTERVAL_MS=10
    )


@pytest.fixture
def verify(site: CaptureSite, started: Started, monkeypatch: pytest.MonkeyPatch) -> Verify:
    """The command, on the Spark that is here."""
    for name, value in site.env().items():
        monkeypatch.setenv(name, value)
        monkeypatch.setitem(started.spark.sparkContext.environment, name, value)

    def run(*tables: str, complete: bool = False, timeout_s: float = 30.0) -> dict[str, ShapeResult]:
        run = StreamRun(
            MASTER,
            {},
            tuple(map(Relation.parse, tables)),
            complete=complete,
            timeout_s=timeout_s,
            show_values=True,
        )
        results = asyncio.run(verify_stream(load_capture_settings(), run, lambda _: None, started.spark))
        return {result.shape: result for result in results}

    return run


def test_a_stream_is_equal_to_postgres_and_a_spoilt_one_is_not(site: CaptureSite, verify: Verify) -> None:
    site.psql(OLD)
    with site.capture() as capture:
        capture.wait_for_log("streaming")
        for statement in NEW.split(";\n"):
            site.psql(statement)
        found = verify()
        assert {name: result.problem for name, result in found.items()} == {
            "public.orders": None,
            "public.emptied": None,
            "public.keyless": None,
            "public.silent": "it has no key, and its deletes are not in the stream. Fix: give it a primary"
            " key, or ALTER TABLE public.silent REPLICA IDENTITY FULL to have its rows counted",
        }
        orders = found["public.orders"]
        assert (orders.counts, orders.untold) == (Counts(48, 18, equal=18), 30)
        # Behind a truncate everything is told.
        assert (found["public.emptied"].counts, found["public.emptied"].untold) == (Counts(2, 2, equal=2), 0)
        keyless = found["public.keyless"]
        assert (keyless.counts, keyless.untold, keyless.counted) == (Counts(4, 1, equal=1), 3, True)

        complete = verify("public.orders", "public.untouched", "public.absent", complete=True)
        assert complete["public.orders"].counts == Counts(48, 18, equal=18, missing=30)
        assert complete["public.untouched"].counts == Counts(1, 0, missing=1)
        assert complete["public.absent"].problem == "public.absent is not in the database"
        assert [complete[name].exit_code for name in sorted(complete)] == [2, 1, 1]

    site.psql("INSERT INTO orders VALUES (70, 70, 'not in the stream yet', 70)")
    with pytest.raises(CannotCompare, match="start penstock capture"):
        verify(timeout_s=0.3)

    plant(
        site,
        {"action": "U", "columns": row(1, "-1.01", "1"), "identity": row(1)},
        {"action": "I", "columns": row(71, "71", "71")},
        {"action": "D", "identity": row(55)},
        # The same row under a key of its own, and an update that tells nothing new.
        {"action": "U", "columns": row(2, "-2", "2"), "identity": row(2)},
    )
    spoilt = verify("public.orders")["public.orders"]
    assert (spoilt.counts, spoilt.untold) == (Counts(49, 18, equal=16, different=1, missing=1, extra=1), 31)
    assert spoilt.exit_code == 1
    by_key = {difference.key["id"]: difference for difference in spoilt.first}
    assert {key: (each.verdict, each.columns) for key, each in by_key.items()} == {
        "1": (Verdict.DIFFERENT, ("amount",)),
        "55": (Verdict.MISSING, ()),
        "71": (Verdict.EXTRA, ()),
    }
    assert shown(by_key["1"], "amount") == ("-1.00", "-1.01")


def test_a_stream_of_another_server_is_not_compared(site: CaptureSite, verify: Verify) -> None:
    site.psql("CREATE TABLE t (id int PRIMARY KEY)")
    manifest = Manifest("R", "7", site.slot, "0" * 12, at(1), at(2), 0, 0, {}, {})
    put(site, partition_key(site.slot), encode(manifest))
    with pytest.raises(CannotCompare, match="the database system 7 under the slot"):
        verify()


def shown(difference: Difference, column: str) -> tuple[str | None, str | None]:
    assert difference.values is not None
    return difference.values[column].postgres, difference.values[column].lake


def row(key: int, amount: str | None = None, d: str | None = None) -> list[dict[str, object]]:
    cells: list[dict[str, object]] = [{"name": "id", "type": "integer", "value": key}]
    if amount is not None and d is not None:
        cells.append({"name": "amount", "type": "numeric(12,2)", "value": float(amount)})
        cells.append({"name": "d", "type": "double precision", "value": float(d)})
    return cells


def plant(site: CaptureSite, *changes: dict[str, object]) -> None:
    """Put a transaction into the stream that never happened, and a manifest that reaches far."""
    records = site.kinesis.read_all(site.stream)
    key = partition_key(site.slot)
    last = max((decode(each.data) for each in records if each.partition_key == key), key=lambda m: m.resolved)
    lsn, by = last.resolved_position.commit_lsn, "0" * 12
    prefix = MarkPrefix(History(1, {}), by)
    shards: dict[str, ShardRange] = {}
    for place, change in enumerate(changes):
        head = {"action": change["action"], "schema": "public", "table": "orders"}
        data = prefix.put(json.dumps({**head, **change}, separators=(",", ":")).encode(), lsn, 2 * place)
        assert data is not None
        shard, number = put(site, "public.orders/planted", data)
        first = shards[shard].first if shard in shards else number
        shards[shard] = ShardRange(first, number, place + 1)
    manifest = Manifest(
        "R", last.system, site.slot, by, last.resolved, at(lsn + (1 << 30)), len(changes), 0, shards, "*"
    )
    put(site, key, encode(manifest))


def put(site: CaptureSite, key: str, data: bytes) -> tuple[str, str]:
    answer = site.kinesis.client.put_record(StreamName=site.stream, PartitionKey=key, Data=data)
    return answer["ShardId"], answer["SequenceNumber"]


def at(lsn: int) -> str:
    return str(StreamPosition(1, lsn))

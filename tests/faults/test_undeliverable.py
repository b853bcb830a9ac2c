"""Records that Kinesis can't take, and odd ones that it can: both policies, nothing lost, the rest flows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.kinesis.write.undeliverable import REFUSAL_PATIENCE_S
from tests.faults.oracle import payload_of
from tests.faults.rig import Rig, assert_calm, check_stream
from tests.faults.stream_checks import Change
from tests.faults.workload import Writers
from tests.servers.capture_process import CaptureProcess
from tests.servers.capture_site import metric, readiness, wait_until
from tests.servers.faults import Answer, RefuseKey
from tests.servers.kinesis_rules import Refusal

BUDGET = {"INFLIGHT_MAX_BYTES": 1_000_000}
OVER_BUDGET = 1_020_000
"""Kinesis takes it, but it is more than the whole in-flight budget above."""
TOO_LARGE = 1_572_864
"""More than Kinesis takes."""
DOCS = "CREATE TABLE docs (id int PRIMARY KEY, edition int, body text)"
KEY = "public.docs/1"


def quarantine(directory: Path) -> dict[str, object]:
    return {"UNDELIVERABLE_POLICY": "quarantine", "QUARANTINE_URL": directory.as_uri()}


def write_editions(rig: Rig, id_: int, size: int) -> None:
    """Three editions of one row, a transaction each; the second is of this size."""
    rig.psql(f"INSERT INTO docs VALUES ({id_}, 1, 'small')")
    rig.psql(f"UPDATE docs SET edition = 2, body = repeat('x', {size}) WHERE id = {id_}")
    rig.psql(f"UPDATE docs SET edition = 3, body = 'small again' WHERE id = {id_}")


def editions(changes: list[Change]) -> list[int]:
    """The edition in each record, or in the payload that it points to."""
    rows = [json.loads(payload_of(change.data))["columns"] for change in changes]
    return [column["value"] for row in rows for column in row if column["name"] == "edition"]


def wait_until_blocked(capture: CaptureProcess, reason: str) -> None:
    """It says so in its log, at its ops port and in its metrics."""
    # A record that Kinesis refuses is tried again for half a minute first.
    said = capture.wait_for_log("record_blocks", timeout=20 + REFUSAL_PATIENCE_S)
    assert (said["level"], said["reason"]) == ("error", reason)
    answer = readiness(capture)
    assert answer["status"] == 503
    assert any(sentence.startswith("blocked:") and reason in sentence for sentence in answer["reasons"])
    assert metric(capture, "penstock_undeliverable_blocked_total") == 1


def wait_until_published(rig: Rig, writers: Writers) -> None:
    """Wait until all that the writers committed is in the stream, confirmed or not."""

    def all_there() -> bool:
        items = [change for change in rig.changes() if change.table == "items"]
        return {change.row_change for change in items} == writers.committed

    wait_until(all_there, "everything else is published")


@pytest.mark.parametrize("policy", ["block", "quarantine"])
def test_long_keys_missing_keys_and_broken_json_are_published(rig: Rig, tmp_path: Path, policy: str) -> None:
    rig.psql("CREATE TABLE long_keys (name text PRIMARY KEY, edition int)")
    rig.psql("CREATE TABLE keyless (edition int)")
    rig.psql("""CREATE TYPE "we""ird" AS ENUM ('a')""")
    rig.psql("""CREATE TABLE weird (id int PRIMARY KEY, value "we""ird")""")
    with rig.capture(**quarantine(tmp_path) if policy == "quarantine" else {}) as capture:
        for edition in (1, 2):
            for letter in "ab":
                rig.psql(
                    f"INSERT INTO long_keys VALUES (repeat('{letter}', 1000), {edition})"
                    " ON CONFLICT (name) DO UPDATE SET edition = excluded.edition"
                )
            rig.psql(f"INSERT INTO keyless VALUES ({edition}), ({edition})")
            rig.psql(f"INSERT INTO weird VALUES ({edition}, 'a')")
        rig.wait_until_confirmed()
        assert readiness(capture)["status"] == 200
        assert_calm(capture)
    changes = rig.changes()
    assert sorted(len(key) for key in {c.key for c in changes if c.table == "long_keys"}) == [64, 64]
    assert sorted(editions([c for c in changes if c.table == "keyless"])) == [1, 1, 2, 2]
    assert sum(not change.body for change in changes) == 2, "this wal2json writes sound JSON for such a type"
    assert not list(tmp_path.iterdir())
    check_stream(rig)


def test_a_table_altered_to_an_odd_type_has_no_record_in_a_marked_stream(rig: Rig, tmp_path: Path) -> None:
    """Changes of it that were read before were in order, and so are those behind it."""
    rig.psql("CREATE TABLE odd (id int PRIMARY KEY)")
    rig.psql("""CREATE TYPE "we""ird" AS ENUM ('a')""")
    with rig.capture(KINESIS_MARKED_STREAM=True, **quarantine(tmp_path)) as capture:
        rig.psql("INSERT INTO odd SELECT generate_series(1, 20)")
        rig.psql("""ALTER TABLE odd ADD COLUMN value "we""ird" DEFAULT 'a'""")
        rig.psql("INSERT INTO odd SELECT generate_series(21, 25)")
        rig.psql("""BEGIN; INSERT INTO odd VALUES (26); ALTER TABLE odd DROP COLUMN value;
            INSERT INTO odd VALUES (27), (28); COMMIT""")
        rig.psql("INSERT INTO odd VALUES (29)")
        rig.wait_until_confirmed()
        assert metric(capture, "penstock_undeliverable_quarantined_total") == 6
        assert_calm(capture)
    changes = [change for change in rig.changes() if change.action != "R"]
    assert sorted(change.row["id"] for change in changes if change.action == "I") == [
        *range(1, 21),
        *range(27, 30),
    ]
    assert [change.action for change in changes].count("Q") == 6
    assert len(changes) == 29


def test_large_records_are_quarantined_in_their_places(rig: Rig, tmp_path: Path) -> None:
    rig.psql(DOCS)
    rig.psql("""CREATE TYPE "we""ird" AS ENUM ('a')""")
    rig.psql("""CREATE TABLE weird (value "we""ird", body text)""")
    writers = Writers(rig.conninfo, seed=8)
    settings = quarantine(tmp_path / "made" / "when needed")
    with rig.capture(**BUDGET, **settings) as capture, rig.oracle.watching() as slot:
        write_editions(rig, 1, TOO_LARGE)
        rig.psql(f"INSERT INTO weird VALUES ('a', repeat('x', {TOO_LARGE}))")
        writers.write(transactions=10)
        write_editions(rig, 2, OVER_BUDGET)
        rig.wait_until_confirmed()
        assert [event["level"] for event in capture.events("record_quarantined")] == ["warning"] * 3
        assert metric(capture, "penstock_undeliverable_quarantined_total") == 3
        assert readiness(capture)["status"] == 200
        assert_calm(capture)
    for id_ in (1, 2):
        docs = rig.of_key(f"public.docs/{id_}")
        assert [change.action for change in docs] == ["I", "Q", "U"]
        assert editions(docs) == [1, 2, 3]
        assert docs[1].body["quarantined"]["reason"] == "too_large"
    check_stream(rig, slot, writers)


@pytest.mark.parametrize(
    ("before", "size", "repair"),
    [
        pytest.param({}, TOO_LARGE, "quarantine", id="too_large_then_quarantined"),
        pytest.param(BUDGET, OVER_BUDGET, {}, id="over_budget_then_a_larger_budget"),
        pytest.param({"KINESIS_MAX_RECORD_BYTES": 100_000}, 150_000, {}, id="too_large_then_a_larger_limit"),
    ],
)
def test_a_large_record_blocks_its_key_and_the_frontier_and_nothing_else(
    rig: Rig, tmp_path: Path, before: dict[str, object], size: int, repair: dict[str, object] | str
) -> None:
    rig.psql(DOCS)
    writers = Writers(rig.conninfo, seed=9)
    with rig.capture(**before) as capture, rig.oracle.watching() as slot:
        write_editions(rig, 1, size)
        writers.write(transactions=20)
        wait_until_blocked(capture, "too_large")
        wait_until_published(rig, writers)
        assert editions(rig.of_key(KEY)) == [1]
        assert_calm(capture)
        capture.stop()
        assert capture.wait() == 0
        with rig.capture(**(repair if isinstance(repair, dict) else quarantine(tmp_path))) as repaired:
            rig.wait_until_confirmed()
            assert readiness(repaired)["status"] == 200
    assert editions(rig.of_key(KEY))[-2:] == [2, 3]
    check_stream(rig, slot, writers)


def test_a_block_stops_the_reader_at_the_window_and_the_line_lives_on(rig: Rig, tmp_path: Path) -> None:
    rig.psql(DOCS)
    writers = Writers(rig.conninfo, seed=10)
    replied = f"SELECT reply_time FROM pg_stat_replication WHERE application_name ~ '{rig.slot}'"
    with rig.capture(ACK_WINDOW_MAX=50) as capture, rig.oracle.watching() as slot:
        rig.psql(f"INSERT INTO docs VALUES (1, 1, repeat('x', {TOO_LARGE}))")
        wait_until_blocked(capture, "too_large")
        writers.write(transactions=50)
        wait_until(lambda: metric(capture, "penstock_ack_pending") == 50, "the window is full")
        full_at = rig.psql("SELECT now()")
        wait_until(lambda: rig.psql(replied) > full_at, "it goes on answering")
        wait_until(lambda: len(rig.changes()) == 49, "all of the window but the blocked one is published")
        assert_calm(capture)
        capture.stop()
        assert capture.wait() == 0
        assert len(rig.changes()) == 49
        with rig.capture(ACK_WINDOW_MAX=50, **quarantine(tmp_path)):
            rig.wait_until_confirmed()
    check_stream(rig, slot, writers)


@pytest.mark.parametrize("blocked_first", [False, True], ids=["quarantine", "block"])
def test_a_record_that_only_kinesis_refuses(rig: Rig, tmp_path: Path, blocked_first: bool) -> None:
    """Requests with the refused record are cut in halves until it stands alone; the others get through."""
    rig.psql(DOCS)
    rig.psql("INSERT INTO docs SELECT id, 1, 'fine' FROM generate_series(1, 40) AS id")
    rig.psql("UPDATE docs SET edition = 2 WHERE id = 1")
    rig.proxy.inject(RefuseKey(KEY))
    with rig.oracle.watching() as slot:
        if blocked_first:
            with rig.capture() as capture:
                wait_until_blocked(capture, "refused_by_kinesis")
                wait_until(lambda: len(rig.changes()) == 39, "the others are published")
                assert_calm(capture)
                capture.stop()
                assert capture.wait() == 0
        with rig.capture(**quarantine(tmp_path)) as capture:
            capture.wait_for_log("record_quarantined")
            # The pointer goes under the same key, so the proxy refuses it too until now.
            rig.proxy.clear()
            rig.wait_until_confirmed()
            assert readiness(capture)["status"] == 200
            assert_calm(capture)
    assert rig.proxy.log.counts["ValidationException"] > 2
    refused = rig.of_key(KEY)
    assert [change.action for change in refused] == ["Q", "U"]
    assert refused[0].body["quarantined"]["reason"] == "refused_by_kinesis"
    check_stream(rig, slot)


def test_a_crash_between_storing_and_publishing_repeats_the_same_pointer(rig: Rig, tmp_path: Path) -> None:
    rig.psql(DOCS)
    log = rig.proxy.log
    with rig.oracle.watching() as slot:
        with rig.capture(**quarantine(tmp_path)) as capture:
            capture.wait_for_log("streaming")
            rig.proxy.hold()
            rig.psql(f"INSERT INTO docs VALUES (1, 1, repeat('x', {TOO_LARGE}))")
            log.wait_for(lambda log: log.held == 1)
            stored = list(tmp_path.iterdir())
            capture.kill9()
        rig.proxy.release()
        log.wait_for(lambda log: log.arrived == len(log.requests))
        with rig.capture(**quarantine(tmp_path)):
            rig.wait_until_confirmed()
    first, second = rig.of_key(KEY)
    assert first.data == second.data
    assert list(tmp_path.iterdir()) == stored
    check_stream(rig, slot)


def test_a_quarantine_that_is_not_writable_is_tried_again(rig: Rig, tmp_path: Path) -> None:
    rig.psql(DOCS)
    in_the_way = tmp_path / "place"
    in_the_way.touch()
    with rig.capture(**quarantine(in_the_way)) as capture, rig.oracle.watching() as slot:
        write_editions(rig, 1, TOO_LARGE)
        said = capture.wait_for_log("quarantine_fails", count=3)
        assert (said["level"], str(in_the_way) in said["error"]) == ("error", True)
        answer = readiness(capture)
        assert answer["status"] == 503
        assert str(in_the_way) in answer["reasons"][0]
        assert editions(rig.of_key(KEY)) == [1]
        in_the_way.unlink()
        rig.wait_until_confirmed()
        assert readiness(capture)["status"] == 200
        assert_calm(capture)
    assert editions(rig.of_key(KEY)) == [1, 2, 3]
    check_stream(rig, slot)


def test_a_refusal_that_passes_blocks_nothing(rig: Rig) -> None:
    """A ValidationException for whole requests, for a while: the service's own fault."""
    rig.psql(DOCS)
    refusal = Answer(Refusal(400, "ValidationException", "1 validation error detected"))
    with rig.capture() as capture, rig.oracle.watching() as slot:
        capture.wait_for_log("streaming")
        rig.proxy.inject(refusal)
        rig.psql("INSERT INTO docs SELECT id, 1, 'fine' FROM generate_series(1, 5) AS id")
        rig.psql("UPDATE docs SET edition = 2")
        rig.proxy.log.wait_for(lambda log: log.counts["ValidationException"] > 10)
        assert "is tried again" in readiness(capture)["reasons"][0]
        rig.proxy.clear(refusal)
        rig.wait_until_confirmed()
        wait_until(lambda: readiness(capture)["status"] == 200, "it is ready again")
        assert not capture.events("record_blocks")
        assert_calm(capture)
    check_stream(rig, slot)

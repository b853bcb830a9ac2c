"""How old the records are that the slowest shape still needs of a stream."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from penstock.kinesis.marked.manifest import ACTION, Manifest, TableMark
from penstock.kinesis.read.chain import Link
from penstock.model.relation import Relation
from penstock.model.stream_position import StreamPosition
from penstock.postgres.catalog.table_tree import Member, Tree
from penstock.shapes.feed.stream_backlog import StreamBacklog
from penstock.shapes.feed.stream_ledger import StreamLedger
from penstock.shapes.feed.stream_routes import StreamRoutes
from penstock.shapes.pace.flush_plan import FlushPlan
from penstock.shapes.pace.flush_tracker import FlushTracker
from penstock.shapes.pace.held import Held, whole

CAME = datetime(2026, 11, 17, tzinfo=UTC)
HOUR = timedelta(hours=1)
TABLES = {"a": Relation("public", "a"), "b": Relation("public", "b")}


def ledger_of(*shapes: str) -> StreamLedger:
    held = Held()
    trees = [Tree(Member(TABLES[name], 1, 1, "")) for name in shapes]
    ledger = StreamLedger(
        held=held,
        routes=StreamRoutes({name: TABLES[name] for name in shapes}, trees),
        backlog=StreamBacklog(StreamPosition(1, 100), lambda *_: (), lambda _: 1),
        tracker=FlushTracker(initial_lsn=100),
        plan=FlushPlan(held=held),
    )
    for name in shapes:
        ledger.add(name, interval_s=0.0, held=whole(99), now=0.0)
    return ledger


def link(since: int, resolved: int, *touched: str) -> Link:
    start = str(StreamPosition(1, since))
    tables = {str(TABLES[name]): TableMark(1, None) for name in touched}
    manifest = Manifest(
        ACTION, "7", "s", "by", start, str(StreamPosition(1, resolved)), len(touched), 10, {}, tables
    )
    return Link(manifest, start)


def test_the_slowest_counts() -> None:
    ledger = ledger_of("a", "b")
    assert ledger.oldest_needed(CAME, 0.0) == ("", timedelta())
    ledger.take(link(100, 110, "a"), CAME, 0.0)
    ledger.backlog.flush(0.0)
    ledger.take(link(110, 120, "b"), CAME + HOUR, 0.0)
    assert ledger.oldest_needed(CAME + 3 * HOUR, 0.0) == ("a", 3 * HOUR)
    assert ledger.oldest_needed(CAME - HOUR, 0.0) == ("a", timedelta()), "clocks differ"

    ledger.tracker.flushed("a", whole(109), 0.0)
    assert ledger.oldest_needed(CAME + 3 * HOUR, 0.0) == ("b", 2 * HOUR)
    ledger.tracker.flushed("b", whole(119), 0.0)
    assert ledger.oldest_needed(CAME + 3 * HOUR, 0.0) == ("", timedelta())


def test_what_touches_nobody_is_not_needed() -> None:
    ledger = ledger_of("a")
    ledger.take(link(100, 110), CAME, 0.0)
    assert ledger.oldest_needed(CAME + HOUR, 0.0) == ("", timedelta())

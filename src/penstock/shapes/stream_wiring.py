"""The parts of a leadership whose changes come from a marked stream."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

from penstock.kinesis.read.chain import Chain
from penstock.kinesis.read.errors import AnotherStream, RecordsExpired, RecordsUnusable
from penstock.kinesis.read.manifest_log import Place
from penstock.kinesis.read.marked_stream import MarkedStream, StreamAddress
from penstock.model.shape import Shape
from penstock.model.snapshot_again import SnapshotAgain
from penstock.model.stream_position import History, StreamPosition
from penstock.shapes.feed.from_kinesis import KinesisFeed
from penstock.shapes.feed.stream_backlog import StreamBacklog
from penstock.shapes.feed.stream_ledger import StreamLedger, count_readers
from penstock.shapes.feed.stream_part import RecentBlocks, parts_of
from penstock.shapes.feed.stream_routes import StreamRoutes
from penstock.shapes.flushing.stream_watch import StreamWatch
from penstock.shapes.flushing.work import ChangeSource
from penstock.shapes.flushing.workplace import Database, Workplace
from penstock.shapes.pace.flush_plan import FlushPlan
from penstock.shapes.pace.flush_tracker import FlushTracker
from penstock.shapes.pace.held import Held, whole
from penstock.shapes.preparation import Prepared
from penstock.shapes.registry.decisions import needed_lsn
from penstock.shapes.wiring import ShapesPipeline, StartOffsets, trees_at_start


class Streamed(NamedTuple):
    """The marked stream, and where it is read from."""

    address: StreamAddress
    stream: MarkedStream
    begins: str
    """Where the chain of manifests begins."""
    system_id: str
    history: History
    move_slot: Callable[[int], Awaitable[None]]
    """Tells the shapes' own slot, if there is one, how far the tables are."""


def position_to_begin(prepared: Prepared, history: History) -> StreamPosition | None:
    """Where the first table that goes on needs changes from; None if none does."""
    lsn = needed_lsn(prepared.actions, prepared.keeper.registry.ceiling_lsn)
    return None if lsn is None else history.boundary(lsn)


class KinesisPipeline(ShapesPipeline):
    """Changes stay in the stream until jobs read them; the driver knows only its manifests."""

    ledger: StreamLedger

    def __init__(
        self,
        shapes: Sequence[Shape],
        prepared: Prepared,
        *,
        streamed: Streamed,
        workplace: Workplace,
        database: Database,
        say_needed: Callable[[SnapshotAgain], None],
    ) -> None:
        start, begins = StartOffsets.of(prepared), StreamPosition.parse(streamed.begins)
        held = Held()
        trees, own_trees = trees_at_start(prepared.facts, start.known)
        routes = StreamRoutes({shape.name: shape.table for shape in shapes}, trees, own_trees)
        make_parts = partial(parts_of, streamed.address, RecentBlocks())
        ledger = StreamLedger(
            held=held,
            routes=routes,
            backlog=StreamBacklog(begins, make_parts, partial(count_readers, routes)),
            tracker=FlushTracker(initial_lsn=begins.commit_lsn),
            plan=FlushPlan(workplace.limits, held),
        )
        super().__init__(
            shapes,
            prepared,
            start=start,
            ledger=ledger,
            source=ChangeSource(is_late=True, lost=(RecordsExpired, RecordsUnusable, AnotherStream)),
            workplace=workplace,
            database=database,
            say_needed=say_needed,
        )
        for shape in start.offsets:
            ledger.skip(shape, whole(prepared.keeper.registry.ceiling_lsn - 1))
        chain: Chain[Place | None] = Chain(
            slot=streamed.address.slot, system=streamed.system_id, applied=streamed.begins, place=None
        )
        self.feed: KinesisFeed = KinesisFeed(
            streamed.stream,
            chain,
            ledger,
            self.confirmed,
            self.resnapshots,
            history=streamed.history,
            move_slot=streamed.move_slot,
            on_links=self.runner.wake,
        )
        self.watch = StreamWatch(
            shapes,
            catalog=database.catalog,
            ledger=ledger,
            work=self.work,
            snapshot_again=self.resnapshots.need,
        )

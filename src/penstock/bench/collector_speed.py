"""How fast the Collector takes one-row transactions, with one shape and with many."""

from __future__ import annotations

import struct
import time
from typing import Final

from penstock.bench.table import Row
from penstock.decoding.plugins import decoder_for
from penstock.model.lsn import format_lsn
from penstock.model.relation import Relation
from penstock.postgres.catalog.table_tree import Member, Tree
from penstock.postgres.stream.walk import FrameWalk
from penstock.shapes.feed.collector import Collector

MANY: Final = 1000
TARGET: Final = 0.8
_RUN: Final = 300
"""Frames that are taken at once. What they lead to is dropped before the next ones are taken, as in life: a
list of all of it would be measured with them."""


def collector_speed(transactions: int = 20_000, rounds: int = 5) -> list[Row]:
    """One-row transactions a second of CPU time, the best round of each."""
    frames = one_row_transactions(transactions)
    alone, among_many = 0.0, 0.0
    for _ in range(rounds):
        alone = max(alone, transactions / seconds_for(frames, shapes=1))
        among_many = max(among_many, transactions / seconds_for(frames, shapes=MANY))
    ratio = among_many / alone
    return [
        Row("collector: one-row transactions/s, 1 shape", f"{alone:,.0f}", "", None),
        Row(f"the same, {MANY:,} shapes", f"{among_many:,.0f}", "", None),
        Row("ratio", f"{ratio:.2f}", f"≥ {TARGET}", ratio >= TARGET),
    ]


def seconds_for(frames: list[memoryview], *, shapes: int) -> float:
    """CPU time that a collector with so many shapes takes for these frames, which are all of one table."""
    tables = {f"shape_{number}": Relation("public", f"t{number}") for number in range(shapes)}
    collector = Collector(
        walk=FrameWalk(decoder_for("wal2json"), confirmed_lsn=10, needs_lsn=True),
        shapes=tables,
        trees=[
            Tree(Member(table, number, number, "a")) for number, table in enumerate(tables.values(), start=1)
        ],
        held={},
    )
    runs = [frames[at : at + _RUN] for at in range(0, len(frames), _RUN)]
    start = time.process_time()
    for run in runs:
        taken = collector.take(run, 0)
        assert taken.next_frame == len(run), "nothing is unknown"
    return time.process_time() - start


def one_row_transactions(transactions: int) -> list[memoryview]:
    """What the server sends for so many transactions of one row each."""
    row = (
        b'{"action":"I","schema":"public","table":"t0",'
        b'"columns":[{"name":"id","type":"integer","value":1}],"pk":[{"name":"id","type":"integer"}]}'
    )
    frames = []
    for number in range(1, transactions + 1):
        names = f'"lsn":"{format_lsn(1000 * number)}","nextlsn":"{format_lsn(1000 * number + 50)}"'
        for payload in (f'{{"action":"B",{names}}}'.encode(), row, f'{{"action":"C",{names}}}'.encode()):
            frames.append(memoryview(struct.pack("!cqqq", b"w", 1000 * number, 1000 * number, 0) + payload))
    return frames

"""What the tests of the ChangeLog share: rows as they were written, and as they are read."""

from __future__ import annotations

from penstock.changelog.index import SegmentRange
from penstock.changelog.log import ChangeLog, LogLimits
from penstock.changelog.segment import read_segment
from penstock.model.log_offset import OP_INFINITY, LogOffset
from penstock.model.relation import Relation

ORDERS = Relation("public", "orders")
ITEMS = Relation("public", 'it."ems')
LIMITS = LogLimits(min_free_bytes=0)

Row = tuple[Relation, LogOffset, bytes]


def txn(tx_offset: int) -> LogOffset:
    return LogOffset(tx_offset, OP_INFINITY)


def rows_of(plan: list[SegmentRange]) -> list[Row]:
    return [
        (
            dict(part.relations)[row["relation_id"]],
            LogOffset(row["tx_offset"], row["op_offset"]),
            row["payload"],
        )
        for part in plan
        for batch in read_segment(part)
        for row in batch.to_pylist()
    ]


def transactions_in(plan: list[SegmentRange]) -> list[int]:
    return sorted({offset.tx_offset for _, offset, _ in rows_of(plan)})


def append_transaction(log: ChangeLog, tx_offset: int, *relations: Relation) -> list[Row]:
    """A change for each relation, then the commit."""
    rows = [
        (relation, LogOffset(tx_offset, 2 * place), f"{relation} {tx_offset}/{place}".encode())
        for place, relation in enumerate(relations)
    ]
    for relation, offset, payload in rows:
        log.append(relation, *offset, payload)
    log.commit(tx_offset)
    return rows

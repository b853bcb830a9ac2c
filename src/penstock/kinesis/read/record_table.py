"""Whose a record of a marked stream is. A change that may be anybody's is an error, never left out."""

from __future__ import annotations

from typing import Final

from penstock.decoding.decoder import Decoder
from penstock.kinesis.read.errors import RecordsUnusable
from penstock.model.change import Action
from penstock.model.relation import Relation

_OF_NO_TABLE: Final = frozenset({Action.BEGIN, Action.COMMIT, Action.MESSAGE})


def table_of(decoder: Decoder, payload: bytes, position: str) -> Relation | None:
    """The table of a record, or of the one that it points to; None for one that is no change of a row.

    RecordsUnusable if it is a change, or a pointer to one, and names no table.
    """
    relation = decoder.relation(payload)
    if relation is None and decoder.action(payload) not in _OF_NO_TABLE:
        raise RecordsUnusable(
            f"the change at {position} names no table that can be read: it may be anybody's. Fix: begin again"
            " behind it, with a new snapshot of what is kept downstream"
        )
    return relation

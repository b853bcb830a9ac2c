"""`penstock capture` into a marked stream, for what reads such a stream."""

from __future__ import annotations

from typing import Final

from penstock.local.kinesis import LocalKinesis
from penstock.local.penstock_process import PenstockProcess
from penstock.local.postgres import PrivatePostgres
from penstock.model.lsn import parse_lsn

SHARDS: Final = 4
PATIENCE_S: Final = 1800.0
_CONFIRMED: Final = "SELECT slot_name::text, confirmed_flush_lsn::text FROM pg_replication_slots"


class StreamCapture(PenstockProcess):
    """Writes a database's changes into a marked stream that has the slot's name."""

    def __init__(self, postgres: PrivatePostgres, database: str, kinesis: LocalKinesis, slot: str) -> None:
        self._postgres = postgres
        self._slot = slot
        variables = {
            "KINESIS_STREAM": slot,
            "REPLICATION_SLOT": slot,
            "KINESIS_MARKED_STREAM": "true",
            "SLOT_NOTE": "false",
        }
        super().__init__(["capture"], {**postgres.env(database), **kinesis.env(), **variables})

    def wait_for_start(self) -> None:
        """Wait until it streams."""
        self.wait_until(lambda: self.events("streaming"), "a capture", PATIENCE_S)

    def wait_for(self, lsn: int) -> None:
        """Wait until everything up to here is in the stream."""

        def is_there() -> bool:
            slots = dict(self._postgres.psql(_CONFIRMED))
            return slots.get(self._slot) is not None and parse_lsn(slots[self._slot]) >= lsn

        self.wait_until(is_there, "everything in the stream", PATIENCE_S, poll_s=0.2)

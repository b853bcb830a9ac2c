"""The watch over replication slots: Penstock never drops a permanent one, so none may vanish in a test.

The functions here are the only code of the project that drops slots. They clean up after tests, and play the
operator who drops one.
"""

from __future__ import annotations

import time
from contextlib import suppress

from psycopg.errors import ObjectInUse

from penstock.local.postgres import PrivatePostgres
from penstock.postgres.slot.state import SlotState

_PERMANENT = "SELECT slot_name, database FROM pg_replication_slots WHERE NOT temporary AND plugin IS NOT NULL"
_TERMINATE = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{}'"
_END_TEMPORARY = """
    SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE temporary AND database = '{}'
"""
_DROP = (
    "SELECT pg_drop_replication_slot('{0}') FROM pg_replication_slots WHERE slot_name = '{0}' AND NOT active"
)
_DROP_S = 15.0
_END_EVERY_S = 2.0

HEALTHY = SlotState(
    name="s",
    slot_type="logical",
    plugin="wal2json",
    database="shop",
    temporary=False,
    active_pid=7,
    confirmed_flush_lsn=0x20,
    restart_lsn=0x10,
    wal_status="reserved",
    safe_wal_bytes=None,
    connected_database="shop",
    retained_bytes=16,
)
"""What pg_replication_slots shows of a slot that is well."""


class SlotWatch:
    """Remembers the permanent logical slots that it has seen on one server.

    It looks at the end of each test, so a slot that is made and dropped by SQL within one test escapes it; a
    DROP_REPLICATION_SLOT command does not, if the server has `log_replication_commands` on.
    """

    def __init__(self, postgres: PrivatePostgres) -> None:
        self._postgres = postgres
        self._seen: set[str] = set()
        self._log_read = 0

    def vanished(self) -> list[str]:
        """What says that a slot was dropped since the last look: names of lost slots, and logged commands."""
        present = set(self._slots())
        lost = sorted(self._seen - present)
        self._seen = present
        log = self._postgres.log_text()
        commands = [
            line for line in log[self._log_read :].splitlines() if "command: DROP_REPLICATION_SLOT" in line
        ]
        self._log_read = len(log)
        return lost + commands

    def drop(self, slot: str) -> None:
        """Drop a slot as an operator would: end its walsender, then drop."""
        ends_at = time.monotonic()
        deadline = ends_at + _DROP_S
        while slot in self._slots():
            now = time.monotonic()
            if now > deadline:
                raise TimeoutError(f"slot {slot} is still active")
            # Once more now and then: its reader may have come back before we dropped it.
            if now >= ends_at:
                self._postgres.psql(_TERMINATE.format(slot))
                ends_at = now + _END_EVERY_S
            with suppress(ObjectInUse):  # it comes back just now
                self._postgres.psql(_DROP.format(slot))
            time.sleep(0.02)
        self._seen.discard(slot)

    def drop_all_of(self, database: str) -> None:
        """Clean up after a test: drop the slots of its own database.

        Temporary ones end with their sessions, which the server may not have noticed yet: until then the
        database can't be dropped.
        """
        for slot, owner in self._slots().items():
            if owner == database:
                self.drop(slot)
        deadline = time.monotonic() + _DROP_S
        while self._postgres.psql(_END_TEMPORARY.format(database)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"a temporary slot of {database} is still there")
            time.sleep(0.02)

    def _slots(self) -> dict[str, str]:
        return dict(self._postgres.psql(_PERMANENT))

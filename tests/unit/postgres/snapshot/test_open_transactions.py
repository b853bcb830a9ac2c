from __future__ import annotations

import pytest

from penstock.postgres.snapshot.open_transactions import OpenTransaction, waits_for

SESSION = OpenTransaction("7", 4711, "psql", None, 312.4)
PREPARED = OpenTransaction("8", None, None, "transfer", 90_000.0)
HIDDEN = OpenTransaction("9", 4712, None, None, None)
FIX = "Fix: end them, or wait (pg_terminate_backend, ROLLBACK PREPARED)"


@pytest.mark.parametrize(
    ("found", "named"),
    [
        ([SESSION], "pid 4711 (psql, for 312 s)"),
        ([PREPARED, HIDDEN], "prepared transaction 'transfer' (for 90000 s), pid 4712"),
        ([HIDDEN] * 5, "pid 4712, pid 4712, pid 4712, 2 more"),
    ],
    ids=["a session", "a prepared one, and one that the role may not see", "many"],
)
def test_the_sentence_names_whom_to_ask(found: list[OpenTransaction], named: str) -> None:
    assert waits_for(found) == f"it waits for open transactions: {named}. {FIX}"

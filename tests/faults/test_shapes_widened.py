"""A column gets more digits, and the service dies before the flush that needs them."""

from __future__ import annotations

import signal
from decimal import Decimal

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.servers.shapes_fixtures import RunOnce
from tests.servers.shapes_site import ShapesSite, shape_lines
from tests.spark.test_widening import operations

LONG_S = 240.0
COLUMNS = ("id", "amount", "note")


@pytest.mark.timeout(900)
def test_a_table_is_rewritten_once_and_never_copied(shapes_site: ShapesSite, run_once: RunOnce) -> None:
    """Who comes after the crash finds the types, and flushes; other readers have every value."""
    site = shapes_site
    site.sql("""
        CREATE TABLE prices (id numeric(6,0) PRIMARY KEY, amount numeric(10,2), note text);
        INSERT INTO prices SELECT g, g + 0.25, 'n' || g FROM generate_series(1, 9) g;
    """)
    site.write_file(shape_lines("prices"))
    with site.shapes(PENSTOCK_FAULT_POINT="columns.widened") as service:
        service.wait_for_log("snapshot_done", LONG_S)
        site.sql("UPDATE prices SET amount = 99999999.99 WHERE id = 1")
        site.sql("ALTER TABLE prices ALTER amount TYPE numeric(12,2), ALTER id TYPE numeric(8,0)")
        site.sql("INSERT INTO prices VALUES (12345678, 9999999999.99, 'new')")
        assert service.wait(LONG_S) == -signal.SIGKILL
    made = operations(site.table("prices"))
    assert made[-1] == "CHANGE COLUMNS"
    assert site.rows("prices", ["id"])[-1] == (Decimal(9),), "the flush had not begun"
    site.wait_until_nobody_leads()

    assert run_once(site, STALL_S="60") == 0

    site.assert_equal("prices", COLUMNS, f"SELECT {', '.join(COLUMNS)} FROM prices")
    site.assert_verified(LONG_S)
    after = operations(site.table("prices"))
    assert after[: len(made)] == made
    assert set(after[1:]) <= {"CHANGE COLUMNS", "MERGE", "WRITE"}, "no copy"
    assert after.count("CHANGE COLUMNS") == 1
    types = DeltaTable(str(site.table("prices"))).to_pyarrow_table().schema
    assert [types.field(name).type for name in ("id", "amount")] == [
        pa.decimal128(8, 0),
        pa.decimal128(12, 2),
    ]

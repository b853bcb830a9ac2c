"""`penstock bench kinesis` runs from its start to its end. What it finds on this machine is not judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.local.penstock_process import PenstockProcess

SMALL = ("--changes", "3000", "--rounds", "1", "--commits", "1")


def measured(parts: str, directory: Path) -> dict[str, str]:
    """The table's values, by what was measured."""
    table = directory / "table.md"
    arguments = ["bench", "kinesis", "--only", parts, *SMALL, "--markdown", str(table)]
    with PenstockProcess(arguments, {}, directory=directory) as bench:
        # 1: a target was missed, as small sizes do.
        assert bench.wait(240) in (0, 1), bench.log_tail()
        assert " failed: " not in bench.log_text()
    cells = [line.split(" | ") for line in table.read_text().splitlines() if line.startswith("| ")]
    return {what.removeprefix("| "): value for what, value, *_ in cells[1:]}


def test_the_source_and_batches(tmp_path: Path) -> None:
    found = measured("source,batches", tmp_path)
    told = "; ".join(found)
    assert 'format("penstock") to no-op' in told
    assert "a bare GetRecords loop" in told
    for kind in ("one-row", "empty"):
        assert float(found[f"{kind} batch, p50"].split()[0]) > 0


@pytest.mark.long
def test_a_backlog_and_latency(tmp_path: Path) -> None:
    found = measured("backlog,latency", tmp_path)
    assert "the same from the local log, rows/s" in found
    assert float(found["one row, commit to visible through the stream, p50"].split()[0]) > 0

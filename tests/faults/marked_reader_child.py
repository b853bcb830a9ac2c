"""A process of its own that reads a whole marked stream as an executor does, and tells its memory.

The query's options come as JSON in the first argument; AWS' variables are set.
"""

from __future__ import annotations

import json
import resource
import sys
import time

from penstock.kinesis.read.marked_ranges import read_task
from penstock.sources.marked_driver import MarkedDriver
from penstock.sources.marked_query import MarkedQuery
from penstock.sources.marked_rows import of_tables, raw_batches


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Print what was read, and what it took: CPU time, and memory beyond that of an idle process."""
    query = MarkedQuery.parse(json.loads(sys.argv[1]))
    driver = MarkedDriver(query)
    client = query.open()
    client.shards()
    before, began = peak_mb(), time.process_time()
    rows = size = largest = 0
    transactions = set()
    for task in driver.everything(time.monotonic()):
        for batch in raw_batches(of_tables(read_task(client, task), frozenset())):
            rows += batch.num_rows
            size += batch.nbytes
            largest = max(largest, batch.nbytes)
            transactions |= set(batch.column("tx_offset").to_pylist())
    print(
        json.dumps(
            {
                "rows": rows,
                "transactions": len(transactions),
                "mb": size / 2**20,
                "largest_batch_mb": largest / 2**20,
                "grown_mb": peak_mb() - before,
                "cpu_s": time.process_time() - began,
            }
        )
    )


if __name__ == "__main__":
    main()

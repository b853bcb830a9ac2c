"""What jobs are done with: Spark's side, and the database's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from penstock.lake.ports import ShapeJobs
from penstock.postgres.catalog.table_catalog import ShapeCatalog
from penstock.shapes.flushing.copy_watch import LEAST_PATIENCE_S
from penstock.shapes.flushing.job_runner import JobThreads
from penstock.shapes.pace.flush_plan import FlushLimits


class Workplace(NamedTuple):
    """Who carries changes into the tables."""

    jobs: ShapeJobs
    threads: JobThreads
    limits: FlushLimits
    count_quarantined: Callable[[int], None]
    copy_patience_s: float = LEAST_PATIENCE_S
    """How long a copy may stand still."""


class Database(NamedTuple):
    """The database itself, for looks at the catalog and for snapshots."""

    catalog: ShapeCatalog
    parameters: dict[str, Any]
    """Of a connection."""

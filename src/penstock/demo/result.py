"""The result in words: the same lines for a terminal and for a pipe."""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.demo.capture_act import SHARDS, TAKEOVER_BOUND_S, CaptureOutcome
from penstock.demo.demo_outcome import DemoOutcome
from penstock.demo.lake_proof import TableCounts
from penstock.demo.shapes_act import ShapesOutcome

_OFFER: Final = "See its pages: penstock demo --stay keeps everything running and prints where they are."
_NEXT: Final = 'Next: README.md, "Point it at your own Postgres".'
_MOST_FINDINGS: Final = 10


class Line(NamedTuple):
    """One count."""

    label: str
    value: str
    remark: str
    good: bool = True


def headline(outcome: DemoOutcome) -> str:
    """The result in one sentence."""
    proof = outcome.capture.proof
    if outcome.holds:
        return "Proved: every committed change is in the stream, and the lake tables equal Postgres"
    if proof.missing:
        return "FAILED: committed changes are missing from the stream"
    if not proof.holds:
        return "FAILED: the stream is not what was committed"
    return "FAILED: the lake tables are not what Postgres holds"


def lines(outcome: DemoOutcome) -> list[Line]:
    """Every count, with what it means."""
    return [*_stream_lines(outcome.capture), *_lake_lines(outcome.shapes)]


def last_words(outcome: DemoOutcome) -> list[str]:
    """Where to go next; or what is wrong, by name, and not more than a person reads."""
    if outcome.holds:
        return [_NEXT] if outcome.stays else [_OFFER, _NEXT]
    found = outcome.findings()
    rest = len(found) - _MOST_FINDINGS
    return found[:_MOST_FINDINGS] + ([f"... and {rest:,} more"] if rest > 0 else [])


def _stream_lines(outcome: CaptureOutcome) -> list[Line]:
    proof = outcome.proof

    def fault(label: str, names: tuple[str, ...], remark: str) -> Line:
        return Line(label, f"{len(names):,}", remark, good=not names)

    return [
        Line("committed", f"{proof.committed:,}", f"changes in {proof.transactions:,} transactions"),
        Line("published", f"{proof.published:,}", f"records in {SHARDS} shards"),
        Line("duplicate", f"{proof.duplicate:,}", "byte-identical repeats, which at-least-once allows"),
        fault("missing", proof.missing, "committed, and not in the stream"),
        fault(
            "invented", proof.invented, f"never committed ({outcome.rollbacks:,} transactions rolled back)"
        ),
        fault("disordered", proof.disordered, "rows whose last records are out of order"),
        fault("differing", proof.differing, f"rows, of {proof.rows:,}: the stream, folded, is not the table"),
        fault("torn", proof.torn, "transactions not restored whole, once and in order by the manifests"),
        fault("unwitnessed", proof.unwitnessed, "the writers' own books against the witness's"),
        Line(
            "takeover",
            f"{outcome.takeover_s:.1f} s",
            f"from kill -9 to the standby's stream (promised: {TAKEOVER_BOUND_S:.0f} s)",
            good=outcome.takeover_s <= TAKEOVER_BOUND_S,
        ),
    ]


def _lake_lines(outcome: ShapesOutcome) -> list[Line]:
    restart = "from kill -9 of shapes to its stream, a new Spark included"
    return [
        *map(_table_line, outcome.proof.tables),
        Line("restart", f"{outcome.restart_s:.1f} s", restart),
    ]


def _table_line(table: TableCounts) -> Line:
    remark = (
        f"rows, {table.lake:,} in the lake: {table.different:,} different,"
        f" {table.missing:,} missing, {table.extra:,} extra"
    )
    return Line(table.shape, f"{table.postgres:,}", remark, good=table.agrees)

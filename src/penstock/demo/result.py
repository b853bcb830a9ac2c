"""The result in words: the same lines for a terminal and for a pipe."""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.demo.capture_act import SHARDS, TAKEOVER_BOUND_S, Outcome

_NEXT: Final = 'Next: README.md, "Point it at your own Postgres".'
_MOST_FINDINGS: Final = 10


class Line(NamedTuple):
    """One count."""

    label: str
    value: str
    remark: str
    good: bool = True


def headline(outcome: Outcome) -> str:
    """The result in one sentence."""
    if outcome.proof.holds:
        return "Proved: every committed change is in the stream"
    if outcome.proof.missing:
        return "FAILED: committed changes are missing from the stream"
    return "FAILED: the stream is not what was committed"


def lines(outcome: Outcome) -> list[Line]:
    """Every count, with what it means."""
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
        fault("unwitnessed", proof.unwitnessed, "the writers' own books against the witness's"),
        Line(
            "takeover",
            f"{outcome.takeover_s:.1f} s",
            f"from kill -9 to the standby's stream (promised: {TAKEOVER_BOUND_S:.0f} s)",
            good=outcome.takeover_s <= TAKEOVER_BOUND_S,
        ),
    ]


def last_words(outcome: Outcome) -> list[str]:
    """Where to go next; or what is wrong, by name, and not more than a person reads."""
    if outcome.proof.holds:
        return [_NEXT]
    found = list(outcome.proof.findings())
    rest = len(found) - _MOST_FINDINGS
    return found[:_MOST_FINDINGS] + ([f"... and {rest:,} more"] if rest > 0 else [])

"""How long rows take to their tables, and whether that grows.

A row's lag goes from its commit in Postgres to the Delta commit that has it. A row that no commit has counts
with the time for which it was waited: left out, it would make a tail look short.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from penstock.bench.table import Row

LIMIT_S: Final = 25.0
MORE: Final = 1.2
"""So many times as long is not longer, on a machine whose speed changes within minutes."""
MORE_S: Final = 1.0
"""Nor is a difference of so little, whatever the ratio."""


class Written(NamedTuple):
    """A row that was committed."""

    table: str
    at: float
    before_lsn: int
    """Where the WAL was just before: the row's commit is behind it, and every earlier one is not."""


class Visible(NamedTuple):
    """A commit of a shape's table."""

    tx_offset: int
    at: float


class Lags(NamedTuple):
    """The lags of some rows, in the order in which these were written."""

    seconds: list[float]
    unseen: int
    """How many of the rows were in no commit."""

    @property
    def p50(self) -> float:
        """Of all rows."""
        return statistics.median(self.seconds)

    @property
    def thirds(self) -> list[float]:
        """The p50 of the rows that were written first, then, and last."""
        count = len(self.seconds)
        cuts = [count * third // 3 for third in range(4)]
        return [statistics.median(self.seconds[first:end]) for first, end in pairwise(cuts)]


def lags_of(
    written: Sequence[Written], commits: Mapping[str, Sequence[Visible]], waited_until: float
) -> Lags:
    """The lags of these rows, by the commits of their tables in the order of their offsets."""
    offsets = {table: [commit.tx_offset for commit in each] for table, each in commits.items()}
    seconds, unseen = [], 0
    for row in written:
        place = bisect_left(offsets[row.table], row.before_lsn)
        seen = place < len(offsets[row.table])
        unseen += not seen
        until = commits[row.table][place].at if seen else waited_until
        seconds.append(max(0.0, until - row.at))
    return Lags(seconds, unseen)


def is_longer(later: float, earlier: float) -> bool:
    """Whether one lag is longer than another, by more than noise."""
    return later > MORE * earlier and later > earlier + MORE_S


def lag_rows(what: str, lags: Lags) -> list[Row]:
    """How long they are, whether they grow, and whether all rows came."""
    first, second, last = lags.thirds
    count, p95 = len(lags.seconds), statistics.quantiles(lags.seconds, n=20)[-1]
    return [
        Row(f"{what}: lag, p50", f"{lags.p50:.1f} s", f"≤ {LIMIT_S:.0f} s", lags.p50 <= LIMIT_S),
        Row("… p95 and longest", f"{p95:.1f} and {max(lags.seconds):.1f} s", "", None),
        Row(
            "… p50 of the first, second and last third of the rows",
            f"{first:.1f}, {second:.1f} and {last:.1f} s",
            f"last {_tolerance('first')}",
            not is_longer(last, first),
        ),
        Row("… rows that never became visible", f"{lags.unseen} of {count:,}", "0", lags.unseen == 0),
    ]


def beside_row(alone: Lags, beside: Lags) -> Row:
    """Whether the lag with a parked shape is that without."""
    return Row(
        "p50 beside a parked shape, against without",
        f"{beside.p50:.1f} and {alone.p50:.1f} s",
        _tolerance("without"),
        not is_longer(beside.p50, alone.p50),
    )


def _tolerance(than: str) -> str:
    return f"≤ {MORE} × {than}, or {MORE_S:.0f} s more"

"""Exponential backoff with full jitter, for writers and readers of streams."""

from __future__ import annotations

import random
from typing import Final

FIRST_S: Final = 0.05
# What fails for long and is well again is ready within 5 s.
LONGEST_S: Final = 4.0
_DOUBLINGS: Final = 10


def full_jitter(
    attempt: int, rng: random.Random, *, first_s: float = FIRST_S, longest_s: float = LONGEST_S
) -> float:
    """Seconds to wait after failure number `attempt` (from 0): anything up to the doubled, capped bound."""
    return rng.uniform(0.0, min(longest_s, first_s * 2.0 ** min(attempt, _DOUBLINGS)))

"""Exponential backoff with full jitter."""

from __future__ import annotations

import random
from typing import Final

FIRST_S: Final = 0.05
LONGEST_S: Final = 5.0
_DOUBLINGS: Final = 10


def full_jitter(attempt: int, rng: random.Random) -> float:
    """Seconds to wait after failure number `attempt` (from 0): anything up to the doubled, capped bound."""
    return rng.uniform(0.0, min(LONGEST_S, FIRST_S * 2.0 ** min(attempt, _DOUBLINGS)))

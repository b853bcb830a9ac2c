"""A stopwatch for bounds of a few seconds, on a machine whose few cores others want too."""

from __future__ import annotations

import re
import time
from pathlib import Path

_PRESSURE = Path("/proc/pressure/cpu")


class Stopwatch:
    """Tells seconds since it was made, less those in which somebody here had to wait for a processor.

    So a bound that is kept on a machine of one's own is kept on a crowded one, and what is too slow by itself
    is so everywhere: a third of the time always counts. Where the kernel doesn't tell, all of it does.
    """

    def __init__(self) -> None:
        self._began_at = time.monotonic()
        self._waited_s = waited_s()

    @property
    def seconds(self) -> float:
        """Since it was made."""
        return self.fair(time.monotonic() - self._began_at)

    def fair(self, seconds: float) -> float:
        """What of these seconds, measured by somebody else since then, counts."""
        return fair_s(seconds, waited_s() - self._waited_s)


def fair_s(seconds: float, waited_s: float) -> float:
    """What counts of a time in which somebody had to wait for so long."""
    return max(seconds / 3, seconds - waited_s)


def waited_s(pressure: Path = _PRESSURE) -> float:
    """For how long, since the machine was started, somebody had to wait for a processor."""
    try:
        found = re.search(r"^some .* total=(\d+)$", pressure.read_text(), re.MULTILINE)
    except OSError:
        return 0.0
    return 0.0 if found is None else int(found[1]) / 1e6

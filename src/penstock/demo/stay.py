"""`penstock demo --stay`: what was proved keeps running, with a calm shop, for somebody to look at."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.demo.watch import Watch
from penstock.demo.workload import CALM_S, Pace, Workload

_LOOK_EVERY_S: Final = 1.0


class Address(NamedTuple):
    """Where something is."""

    name: str
    place: str


def stay(conninfo: str, seed: int, watch: Watch, addresses: Sequence[Address]) -> None:
    """Say where everything is, and let it run until Ctrl-C. DemoFailed if a process ends by itself."""
    # Other choices than before: the shop has had those.
    shop = Workload(conninfo, seed=seed + 1, pace=Pace(CALM_S))
    shop.open()
    try:
        print("\n".join(_lines(addresses)), flush=True)
        while True:
            shop.check()
            watch.look()
            time.sleep(_LOOK_EVERY_S)
    except KeyboardInterrupt:
        print("ending everything", flush=True)
    finally:
        shop.close()


def _lines(addresses: Sequence[Address]) -> list[str]:
    width = max(len(address.name) for address in addresses)
    return [
        "Everything keeps running, and the shop is open at a calm pace:",
        *(f"  {address.name:<{width}}  {address.place}" for address in addresses),
        "Ctrl-C ends it all.",
    ]

"""HEALTHCHECK of both images: exit 0 if this container's own process answers /livez."""

from __future__ import annotations

import os
import sys
import urllib.request

from penstock.ops.address import own_url_of

_TIMEOUT_S = 4.0


def main() -> int:
    """Ask once."""
    url = own_url_of(os.environ.get("OPS_HOST", ""), os.environ.get("OPS_PORT") or "8088")
    # A proxy for the world knows nothing of this container's own ports.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        direct.open(f"{url}/livez", timeout=_TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        print(f"no answer of {url}/livez: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

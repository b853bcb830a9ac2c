"""HEALTHCHECK of both images: exit 0 if this container's own process answers /livez."""

from __future__ import annotations

import os
import sys
import urllib.request

_ANY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 (where it listens; we ask by loopback)
_TIMEOUT_S = 4.0


def main() -> int:
    """Ask once."""
    host, port = os.environ.get("OPS_HOST", ""), os.environ.get("OPS_PORT") or "8088"
    address = "127.0.0.1" if host in _ANY_ADDRESS else host
    # A proxy for the world knows nothing of this container's own ports.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        direct.open(f"http://{address}:{port}/livez", timeout=_TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        print(f"no answer of /livez at {address}:{port}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

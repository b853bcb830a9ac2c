"""Which Decoder reads which output plugin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.decoding.decoder import Decoder
from penstock.decoding.wal2json import Wal2Json

STREAM_PLUGIN: Final = "wal2json"
"""What records of a marked stream are, whichever plugin the server has."""
_DECODERS: Final[dict[str, Callable[[], Decoder]]] = {"wal2json": Wal2Json}


def decoder_for(plugin: str) -> Decoder:
    """A decoder of this output plugin's payloads; LookupError if there is none."""
    return _DECODERS[plugin]()

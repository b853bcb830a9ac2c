"""The stream that a storage's URL names."""

from __future__ import annotations

import os
from typing import Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

from penstock.lake.errors import StorageRefused
from penstock.lake.storages.kinds import STREAM, kind_of
from penstock.lake.stream.place import StreamPlace
from penstock.model.shape import ShapesFile

_REGIONS: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
_ENDPOINT: Final = "AWS_ENDPOINT_URL_KINESIS"


class StreamUrl(NamedTuple):
    """A storage that is a stream."""

    place: StreamPlace
    marks_stream: str


def stream_of(file: ShapesFile) -> StreamUrl | None:
    """The stream that is a file's storage; None if it has tables."""
    if kind_of(file.storage) is not STREAM:
        return None
    url = urlsplit(file.storage)
    region = next((os.environ[name] for name in _REGIONS if os.environ.get(name)), None)
    if region is None:
        raise StorageRefused(f"storage {file.storage}: AWS_REGION is not set: name the stream's region")
    place = StreamPlace(url.netloc, region, os.environ.get(_ENDPOINT) or None)
    return StreamUrl(place, parse_qs(url.query).get("marks", [url.netloc])[0])

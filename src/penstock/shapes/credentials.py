"""How long the AWS credentials last of shapes whose changes come from a stream, or go to one."""

from __future__ import annotations

from functools import partial

from penstock.kinesis.aws.credentials import CredentialKeeper
from penstock.kinesis.aws.session import open_session
from penstock.kinesis.read.marked_stream import StreamAddress
from penstock.lake.errors import StorageRefused
from penstock.lake.storages.stream_url import stream_of
from penstock.model.shape import ShapesFile


def watch_credentials(file: ShapesFile, source: StreamAddress | None) -> CredentialKeeper | None:
    """Looks at what this process is given, and renews it as its clients do; None if it has no stream.

    Clients of streams come and go with leaderships and jobs, here and on executors. Whoever gives them
    credentials is the same.
    """
    region = _region(file) if source is None else source.region
    return None if region is None else CredentialKeeper(partial(open_session, region))


def _region(file: ShapesFile) -> str | None:
    try:
        stream = stream_of(file)
    except StorageRefused:
        # Said with its fix when the storage is opened.
        return None
    return None if stream is None else stream.place.region

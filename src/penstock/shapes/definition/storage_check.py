"""What `penstock check --config` makes of a stream that is the shapes' storage. No record is written."""

from __future__ import annotations

from typing import Final

from penstock.errors import PenstockError
from penstock.finding import Finding, Level
from penstock.kinesis.stream_check import check_quarantine, check_stream
from penstock.lake.storages.outside import read_table_version
from penstock.lake.storages.stream_url import StreamUrl, stream_of
from penstock.model.shape import ShapesFile
from penstock.settings.kinesis import KinesisSettings
from penstock.shapes.registry.places import open_registry

_STORAGE: Final = "storage in the shapes file"
_TO_READ: Final = (
    "allow kinesis:ListShards, kinesis:GetShardIterator and kinesis:GetRecords: each manifest is read back"
)


def check_stream_storage(
    file: ShapesFile, max_record_bytes: int, quarantine_url: str | None
) -> list[Finding]:
    """The stream, that of the manifests, what can be read back, the quarantine; nothing for tables. Blocks.

    SettingsError if the AWS configuration is no good.
    """
    try:
        url = stream_of(file)
    except PenstockError as error:
        return [Finding.from_error("stream", error)]
    if url is None:
        return []
    place = url.place
    # No variable names this stream, so none is wrong.
    settings = KinesisSettings.model_construct(
        region=place.region,
        stream=place.stream,
        endpoint_url=place.endpoint_url,
        max_record_bytes=max_record_bytes,
        marked_stream=True,
    )
    found = [check_stream(settings, named_by=_STORAGE)]
    if url.marks_stream != place.stream:
        marks = settings.model_copy(update={"stream": url.marks_stream})
        found.append(check_stream(marks, named_by=_STORAGE)._replace(subject="manifests"))
    if all(finding.level is not Level.FAIL for finding in found):
        found.append(_check_positions(file, url))
    if quarantine_url is not None:
        found.append(check_quarantine(quarantine_url, place.region))
    return found


def _check_positions(file: ShapesFile, url: StreamUrl) -> Finding:
    """Whether manifests can be read, by those of the first shape."""
    shape = file.shapes[0]
    try:
        registry = open_registry(file.registry_at).read()
        if registry is None:
            client = url.place._replace(stream=url.marks_stream).open()
            try:
                client.shards()
            finally:
                client.close()
            return Finding.ok("positions", "there are none yet: every shape begins where its snapshot is cut")
        version = read_table_version(file, shape, registry.system_id)
    except PenstockError as error:
        finding = Finding.from_error("positions", error)
        return finding if finding.fix else finding._replace(fix=_TO_READ)
    entry = registry.shapes.get(shape.name)
    if version.position is None and entry is not None and entry.awaits_snapshot is None:
        return Finding.warn(
            "positions",
            f"the stream has no manifest of shape {shape.name} any more: it begins again, and its readers see"
            " a gap",
            "let the stream keep records for longer than the service is ever down",
        )
    return Finding.ok(
        "positions",
        "manifests can be read back",
        "a shape begins again, and its readers see a gap, if the service is down for longer than the stream"
        " keeps records",
    )

"""`penstock check`: what stands in the way of a capture or of shapes, a line each, with the fix."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence

from penstock import exit_codes
from penstock.abandonable import in_daemon_thread
from penstock.finding import Finding, Level, as_json, as_text, worst
from penstock.kinesis.stream_check import check_quarantine, check_stream
from penstock.model.shape import ShapesFile
from penstock.postgres.preflight.postgres_check import check_capture_postgres
from penstock.settings.loading import load_stream_source
from penstock.settings.services import CaptureSettings, ShapesSettings
from penstock.terminal import wants_colour


async def find(settings: CaptureSettings) -> list[Finding]:
    """Look at everything that a capture needs; both servers at once."""
    postgres, streams = await asyncio.gather(
        check_capture_postgres(settings), in_daemon_thread(_check_streams, settings)
    )
    doubtful = [Finding.warn("settings", sentence) for sentence in settings.warnings()]
    url = settings.undeliverable.quarantine_url
    region = settings.kinesis.region
    quarantine = [] if url is None else [await in_daemon_thread(check_quarantine, url, region)]
    return [*doubtful, *postgres, *streams, *quarantine]


def _check_streams(settings: CaptureSettings) -> list[Finding]:
    """The stream, and that of the manifests if it is another."""
    kinesis = settings.kinesis
    found = [
        check_stream(kinesis, keys_matter=settings.keys_matter, may_be_unordered=settings.may_be_unordered)
    ]
    if kinesis.marked_stream and kinesis.marks_stream not in (None, kinesis.stream):
        marks = kinesis.model_copy(update={"stream": kinesis.marks_stream})
        found.append(check_stream(marks, keys_matter=True)._replace(subject="manifests"))
    return found


def find_for_shapes(
    settings: ShapesSettings,
    file: ShapesFile,
    master: str,
    conf: Mapping[str, str],
    stream: str | None = None,
) -> list[Finding]:
    """Look at everything that shapes need; Spark last, since its start takes seconds.

    `stream`: what stands behind `--from`.
    """
    # A check of a capture works without Spark's packages.
    from penstock.lake.jobs.spark_check import check_spark
    from penstock.outside.needed import needed_now
    from penstock.outside.source_findings import check_writer, server_now
    from penstock.shapes.definition.shapes_check import Read, check_storage_of, look_at_shapes
    from penstock.shapes.definition.source_check import address_of, check_names, check_source
    from penstock.shapes.definition.storage_check import check_stream_storage

    read, found, log_directory = Read(), list[Finding](), None
    if stream is None:
        log_directory = settings.change_log.directory_for(file.storage, settings.replication.slot)
    else:
        source, stall_s = load_stream_source(stream), settings.change_log.stall_s
        found = check_source(source, lambda: asyncio.run(needed_now(settings, file)))
        found += check_writer(address_of(source), asyncio.run(server_now(settings)), stall_s)
        found += check_names(file, source)
    postgres = asyncio.run(look_at_shapes(settings, file, read, from_stream=stream is not None))
    storage = check_storage_of(file, log_directory, settings.change_log.min_free_bytes)
    storage += check_stream_storage(
        file, settings.records.max_record_bytes, settings.undeliverable.quarantine_url
    )
    return [*found, *postgres, *storage, *check_spark(file, read.facts, master, conf, log_directory)]


def report(findings: Sequence[Finding], *, json: bool) -> int:
    """Print the findings; returns the exit code."""
    print(as_json(findings) if json else as_text(findings, colour=wants_colour(sys.stdout)))
    return exit_codes.FAILED if worst(findings) is Level.FAIL else exit_codes.OK

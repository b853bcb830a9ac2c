"""`penstock check`: what stands in the way of a capture, a line each, with the fix."""

from __future__ import annotations

import asyncio
import os
import sys

from penstock.finding import Finding, Level, as_json, as_text, worst
from penstock.kinesis.preflight import check_quarantine, check_stream
from penstock.postgres.preflight import check_postgres
from penstock.settings import CaptureSettings

EXIT_FAILED = 1


async def find(settings: CaptureSettings) -> list[Finding]:
    """Look at everything; both servers at once."""
    postgres, stream = await asyncio.gather(
        check_postgres(settings), asyncio.to_thread(check_stream, settings.kinesis)
    )
    doubtful = [Finding.warn("settings", sentence) for sentence in settings.warnings()]
    directory = settings.undeliverable.quarantine_dir
    quarantine = [] if directory is None else [await asyncio.to_thread(check_quarantine, directory)]
    return [*doubtful, *postgres, stream, *quarantine]


def check(settings: CaptureSettings, *, json: bool) -> int:
    """Print the findings; returns the exit code."""
    findings = asyncio.run(find(settings))
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    print(as_json(findings) if json else as_text(findings, colour=colour))
    return EXIT_FAILED if worst(findings) is Level.FAIL else 0

"""Structured logs: one line an event, no row values, no secrets."""

from __future__ import annotations

import logging
import sys
from typing import Final

import structlog

from penstock.terminal import wants_colour

_TALKATIVE: Final = frozenset({"boto3", "botocore", "s3transfer", "urllib3"})
_SAY_AGAIN_S: Final = 60.0


def configure(*, log_format: str, level: str) -> None:
    """Write events to standard output, as JSON lines or for a person's eyes."""
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(colors=wants_colour(sys.stdout))
        if log_format == "console"
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stdout),
        cache_logger_on_first_use=True,
    )
    # Libraries speak through `logging`; what they say at debug level may hold request bodies.
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(name)s: %(message)s")
    for handler in logging.getLogger().handlers:
        handler.addFilter(LibraryThrottle())


class LibraryThrottle(logging.Filter):
    """Lets AWS's libraries say each thing once a minute, and without tracebacks.

    They report every retry of everything that fails; what it means for us we say ourselves.
    """

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[tuple[str, int], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this is to be said; `record.created` is the time."""
        if record.name.partition(".")[0] not in _TALKATIVE:
            return True
        place = (record.pathname, record.lineno)
        if record.created - self._said.get(place, float("-inf")) < _SAY_AGAIN_S:
            return False
        self._said[place] = record.created
        record.exc_info = record.exc_text = None
        return True

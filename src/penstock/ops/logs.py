"""Structured logs: one line an event, no row values, no secrets."""

from __future__ import annotations

import logging
import sys

import structlog


def configure(*, log_format: str, level: str) -> None:
    """Write events to standard output, as JSON lines or for a person's eyes."""
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if log_format == "console" else structlog.processors.JSONRenderer()
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

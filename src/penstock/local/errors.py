"""What goes wrong with the private servers of tests, demo and bench."""

from __future__ import annotations

from penstock.errors import PenstockError


class LocalServerError(PenstockError):
    """A private server could not be found, started or stopped; the message says what to do."""

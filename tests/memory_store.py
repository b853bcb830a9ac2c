"""A quarantine in memory."""

from __future__ import annotations


class MemoryStore:
    """A QuarantineStore that keeps payloads by their names."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}

    def store(self, name: str, payload: bytes) -> str:
        """See QuarantineStore."""
        self.stored[name] = payload
        return f"memory:{name}"

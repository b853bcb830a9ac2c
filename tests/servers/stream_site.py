"""Shapes whose storage is a Kinesis stream, and what the plain reader sees of them."""

from __future__ import annotations

import json
from pathlib import Path

from penstock.demo.marked_stream import MarkedStream
from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from tests.servers.shapes_site import ShapesSite


class StreamSite(ShapesSite):
    """Shapes whose storage is a stream."""

    def __init__(
        self, postgres: PrivatePostgres, database: str, directory: Path, kinesis: LocalKinesis, stream: str
    ) -> None:
        super().__init__(postgres, database, directory)
        self.kinesis = kinesis
        self.stream = stream

    def write_file(self, *shapes: str) -> None:
        tables = "\n".join(f"[[shape]]\n{shape}" for shape in shapes)
        self.file.write_text(f'storage = "kinesis://{self.stream}"\nregistry = "./kept"\n{tables}\n')

    def env(self, **over: str) -> dict[str, str]:
        own = {"LOG_DIR": str(self.directory / "log"), "STALL_S": "170"}
        return {**self.kinesis.env(), **own, **over}

    def marked(self, shape: str) -> MarkedStream:
        return MarkedStream(self.kinesis.read_all(self.stream), shape)

    def transactions(self, shape: str) -> list[list[tuple[str, int | None]]]:
        """The action and the key of each change, as the plain reader sees them."""
        return [[told(change) for change in each] for each in self.marked(shape).transactions()]


def told(payload: bytes) -> tuple[str, int | None]:
    said = json.loads(payload)
    cells = said.get("columns") or said.get("identity") or []
    return said["action"], next((cell["value"] for cell in cells if cell["name"] == "id"), None)

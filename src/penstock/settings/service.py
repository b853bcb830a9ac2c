"""Settings of a service's own place: its log of changes, its port, its log lines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from penstock.settings.errors import SettingsError
from penstock.settings.kinds import MIB, Count, Duration, Group, Host, LogFormat, LogLevel, Text
from penstock.settings.rules import whole_number


class ChangeLogSettings(Group):
    """The log on disk in which changes wait for their shapes, and the pace of the shapes."""

    directory: Text | None = Field(default=None, validation_alias="LOG_DIR")
    """None: the storage's own."""
    max_bytes: Annotated[int, whole_number(MIB)] = Field(
        default=10 * 1024 * MIB, validation_alias="LOG_MAX_BYTES"
    )
    min_free_bytes: Annotated[int, whole_number(0)] = Field(
        default=256 * MIB, validation_alias="LOG_MIN_FREE_BYTES"
    )
    max_flushes: Count = Field(default=4, validation_alias="FLUSH_MAX_PARALLEL")
    stall_s: Duration = Field(default=60.0, validation_alias="STALL_S")
    """A shape that makes no progress for so long is reported."""

    def directory_for(self, storage: str, slot: str) -> Path:
        """Where the log's runs are. In LOG_DIR each slot has its own place: runs of others look abandoned.

        SettingsError if LOG_DIR is unset and the storage is no directory.
        """
        if self.directory is not None:
            return Path(self.directory) / slot
        if "://" in storage:
            raise SettingsError(
                f"LOG_DIR is unset: the storage is {storage}, and the log needs a directory. Fix: set it to"
                " one on a local disk, or on a mount that Spark's executors share"
            )
        return Path(storage) / "_penstock" / "log"


class OpsSettings(Group):
    """Where health, metrics and the console listen."""

    host: Host = Field(default="127.0.0.1", validation_alias="OPS_HOST")
    port: Annotated[int, whole_number(0, 65535)] = Field(default=8088, validation_alias="OPS_PORT")
    """0: any free one."""


class LogSettings(Group):
    """How logs look."""

    format: LogFormat = Field(default="json", validation_alias="PENSTOCK_LOG_FORMAT")
    level: LogLevel = Field(default="info", validation_alias="PENSTOCK_LOG_LEVEL")

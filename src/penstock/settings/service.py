"""Settings of a service's own place: its log of changes, its port, its log lines."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, PrivateAttr, model_validator

from penstock.settings.errors import SettingsError
from penstock.settings.kinds import (
    MIB,
    TOKEN_PATTERN,
    TOKEN_RULE,
    Count,
    Duration,
    Flag,
    Group,
    Host,
    LogFormat,
    LogLevel,
    Text,
    Token,
)
from penstock.settings.rules import is_loopback, whole_number


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
    """Where health, metrics and the page listen, and who may see them."""

    host: Host = Field(default="127.0.0.1", validation_alias="OPS_HOST")
    port: Annotated[int, whole_number(0, 65535)] = Field(default=8088, validation_alias="OPS_PORT")
    """0: any free one."""
    token: Token | None = Field(default=None, validation_alias="OPS_TOKEN")
    token_file: Text | None = Field(default=None, validation_alias="OPS_TOKEN_FILE")
    """A file that holds it; it is read once, at the start."""
    metrics_open: Flag = Field(default=False, validation_alias="OPS_METRICS_OPEN")
    """Whether `/metrics` needs no token."""
    _secret: str | None = PrivateAttr(default=None)

    @property
    def secret(self) -> str | None:
        """The token, from wherever it comes."""
        return self._secret

    @model_validator(mode="after")
    def _others_need_a_token(self) -> Self:
        if self.token is not None and self.token_file is not None:
            raise ValueError("OPS_TOKEN and OPS_TOKEN_FILE are both set: set one of them")
        self._secret = None if self.token is None else self.token.get_secret_value()
        if self.token_file is not None:
            self._secret = _token_in(self.token_file)
        if self._secret is None and not is_loopback(self.host):
            raise ValueError(
                f"OPS_HOST={self.host!r}: others could read the ops port, and OPS_TOKEN is not set. Fix: set"
                " OPS_TOKEN or OPS_TOKEN_FILE, or leave OPS_HOST at 127.0.0.1"
            )
        return self


def _token_in(path: str) -> str:
    """The first line of a file; ValueError never quotes it."""
    try:
        found = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ValueError(f"OPS_TOKEN_FILE={path!r}: can't be read: {why}") from None
    if not re.fullmatch(TOKEN_PATTERN, found):
        raise ValueError(f"OPS_TOKEN_FILE={path!r}: the token in it {TOKEN_RULE}")
    return found


class LogSettings(Group):
    """How logs look."""

    format: LogFormat = Field(default="json", validation_alias="PENSTOCK_LOG_FORMAT")
    level: LogLevel = Field(default="info", validation_alias="PENSTOCK_LOG_LEVEL")

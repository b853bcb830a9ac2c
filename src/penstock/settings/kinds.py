"""Kinds of values: each is a type with its rule.

A setting is a field, its variable is the alias, its type is the rule. Groups follow topics and are frozen.
PG* and the AWS credentials are not here on purpose: libpq and botocore read them from the environment
themselves, and what is no field can't be printed.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, SecretStr

from penstock.settings.rules import (
    directory_url,
    flag,
    host,
    http_url,
    matching,
    one_of,
    seconds,
    text,
    whole_number,
)

MIB = 1024 * 1024
KINESIS_REQUEST_LIMIT_BYTES = 10 * MIB

TOKEN_PATTERN = r"[!-~]{16,512}"  # noqa: S105 - what it looks like
TOKEN_RULE = "must be 16 to 512 characters, ASCII and without spaces"  # noqa: S105

Flag = Annotated[bool, flag()]
Count = Annotated[int, whole_number(1)]
RequestBytes = Annotated[int, whole_number(1, KINESIS_REQUEST_LIMIT_BYTES)]
LockKey = Annotated[int, whole_number(-(2**63), 2**63 - 1)]
Duration = Annotated[float, seconds(0, above_low=True)]
Text = Annotated[str, text()]
Host = Annotated[str, host()]
Token = Annotated[SecretStr, matching(TOKEN_PATTERN, TOKEN_RULE)]
HttpUrl = Annotated[str, http_url()]
DirectoryUrl = Annotated[str, directory_url()]
SlotName = Annotated[str, matching(r"[a-z0-9_]{1,63}", "must be a slot name: 1 to 63 of a-z, 0-9 and _")]
Region = Annotated[str, matching(r"[a-z0-9][a-z0-9-]{0,62}", "must be an AWS region, such as eu-west-1")]
STREAM_ARN = re.compile(r"arn:aws[a-z-]*:kinesis:([a-z0-9-]+):[0-9]{12}:stream/([a-zA-Z0-9_.-]{1,128})")
Stream = Annotated[
    str,
    matching(
        rf"[a-zA-Z0-9_.-]{{1,128}}|{STREAM_ARN.pattern}",
        "must be a stream name (1 to 128 of a-z, A-Z, 0-9, _, . and -) or a stream's ARN",
    ),
]
OutputPlugin = Annotated[Literal["wal2json"], one_of("wal2json", why=", the only supported plugin")]
KeyMode = Annotated[Literal["primary_key", "fallback"], one_of("primary_key", "fallback")]
KeyFallback = Annotated[Literal["lsn", "table", "static"], one_of("lsn", "table", "static")]
KeyDerivation = Annotated[Literal["slot_hash64"], one_of("slot_hash64")]
UndeliverablePolicy = Annotated[Literal["block", "quarantine"], one_of("block", "quarantine")]
LogFormat = Annotated[Literal["json", "console"], one_of("json", "console")]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"], one_of("debug", "info", "warning", "error")
]


def stream_name(stream: str) -> str:
    """The name of a stream that is given by its name or by its ARN."""
    return stream.rpartition("/")[2]


class Group(BaseModel):
    """Settings of one topic."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

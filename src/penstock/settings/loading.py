"""Settings are read from the environment and from `.env`; every bad variable is named at once."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, DotEnvSettingsSource

from penstock.settings.errors import SettingsError
from penstock.settings.kinds import Group
from penstock.settings.kinesis import MarkedStreamSettings
from penstock.settings.postgres import SHAPES_SLOT
from penstock.settings.services import (
    CaptureSettings,
    ShapesSettings,
    SlotSettings,
    StreamSourceSettings,
)

DOTENV = Path(".env")

_LONGEST_SHOWN = 100
_SECRET = frozenset({"OPS_TOKEN"})
_WHAT_TO_SET = {
    "AWS_REGION": "name the AWS region of the stream, such as eu-west-1",
    "KINESIS_STREAM": "name the Kinesis stream to write to",
}


_Root = TypeVar("_Root", bound=Group)


def load_capture_settings(
    environ: Mapping[str, str] | None = None, dotenv: Path | None = DOTENV
) -> CaptureSettings:
    """Read the settings of `penstock capture`; SettingsError names every bad variable at once.

    `.env` applies where the environment says nothing. Without `environ`, the process's own is
    read, and what only `.env` has is exported to it: libpq and botocore look for PG* and AWS_* there.
    """
    return _load(CaptureSettings, _variables(environ, dotenv))


def load_slot_settings(
    environ: Mapping[str, str] | None = None, dotenv: Path | None = DOTENV
) -> SlotSettings:
    """Read what says where a capture's slot and ops port are; nothing else need be set."""
    return _load(SlotSettings, _variables(environ, dotenv))


def load_shapes_settings(
    environ: Mapping[str, str] | None = None, dotenv: Path | None = DOTENV
) -> ShapesSettings:
    """Read the settings of `penstock shapes`: a slot of its own, and no Kinesis stream."""
    variables = {"REPLICATION_SLOT": SHAPES_SLOT} | _variables(environ, dotenv)
    return _load(ShapesSettings, variables)


def load_stream_source(
    url: str, environ: Mapping[str, str] | None = None, dotenv: Path | None = DOTENV
) -> MarkedStreamSettings:
    """Read `kinesis://STREAM?slot=…&marks=…`; region and endpoint are in the usual AWS variables."""
    scheme, _, rest = url.partition("://")
    stream, _, query = rest.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    if scheme != "kinesis" or not stream or not options.keys() <= {"slot", "marks"}:
        raise SettingsError(
            f"--from {url!r}: must be kinesis://STREAM, with ?slot=NAME&marks=STREAM behind it"
        )
    parts = {"stream": stream, **options}
    names = {"stream": "--from, the stream", "slot": "--from, slot", "marks": "--from, marks"}
    variables = _variables(environ, dotenv) | {names[part]: value for part, value in parts.items()}
    return _load(StreamSourceSettings, variables).marked


def _variables(environ: Mapping[str, str] | None, dotenv: Path | None) -> dict[str, str]:
    """Every variable that has a value: an empty one counts as unset."""
    from_file = _read_dotenv(dotenv)
    own = os.environ if environ is None else environ
    if environ is None:
        os.environ.update({name: value for name, value in from_file.items() if not os.environ.get(name)})
    return from_file | {name: value for name, value in own.items() if value}


def _read_dotenv(path: Path | None) -> dict[str, str]:
    try:
        source = DotEnvSettingsSource(BaseSettings, env_file=path, case_sensitive=True, env_ignore_empty=True)
    except OSError as error:
        raise SettingsError(f"{path} can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{path} can't be read: it is not UTF-8 text") from None
    found = {name: value for name, value in source.env_vars.items() if value}
    if any("\0" in value for value in found.values()):
        raise SettingsError(f"{path} can't be read: no variable can hold a zero byte")
    return found


def _load(root: type[_Root], variables: Mapping[str, str]) -> _Root:
    groups = {
        name: {alias: variables[alias] for alias in _aliases(field.annotation) if alias in variables}
        for name, field in root.model_fields.items()
    }
    try:
        return root.model_validate(groups)
    except ValidationError as error:
        lines = [_line(details) for details in error.errors()]
    # Outside of the handler: pydantic's own message, with every value in it, must not be in the traceback.
    raise SettingsError("\n".join(lines))


def _aliases(group: Any) -> list[str]:
    return [field.validation_alias for field in group.model_fields.values()]


def _line(error: ErrorDetails) -> str:
    """One readable line. A rule across variables brings its own; a rule of one variable is only the rule."""
    if error["type"] == "missing":
        variable = str(error["loc"][-1])
        return f"{variable} is not set: {_WHAT_TO_SET[variable]}"
    rule = str(error["ctx"]["error"])
    if len(error["loc"]) < 2:
        return rule
    variable = str(error["loc"][1])
    return f"{variable}={'***' if variable in _SECRET else _shown(error['input'])}: {rule}"


def _shown(value: str) -> str:
    """The value in quotes, on one line, of a sane length, and without what may be a password in a URL."""
    bare = re.sub(r"//.*@", "//***@", value, flags=re.DOTALL)
    return repr(bare if len(bare) <= _LONGEST_SHOWN else bare[:_LONGEST_SHOWN] + "…")

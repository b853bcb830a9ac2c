"""`penstock init`: a look at the database, and from it the files to begin with. No file is ever replaced."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from penstock import exit_codes
from penstock.errors import PenstockError
from penstock.init.database_look import DatabaseLook, look_at_database
from penstock.init.env_file import EnvFacts, connection_variables, render_env
from penstock.init.shapes_text import TableLook, render_shapes
from penstock.settings.postgres import ReplicationSettings

ENV: Final = ".env"
SHAPES: Final = "shapes.toml"
_MODES: Final = {ENV: 0o600, SHAPES: 0o666}
"""Before the umask. A `.env` may come to hold a password."""


class InitFailed(PenstockError):
    """A file can't be written."""


class Wishes(NamedTuple):
    """What the command was told."""

    directory: Path
    region: str | None
    stream: str | None
    with_shapes: bool
    """Whether what shapes need is installed."""


def run_init(replication: ReplicationSettings, wishes: Wishes, environ: Mapping[str, str]) -> int:
    """Look and write; returns the exit code. PostgresError, InitFailed."""
    missing = [name for name in (ENV, SHAPES) if not os.path.lexists(wishes.directory / name)]
    if not missing:
        raise InitFailed(
            f"{ENV} and {SHAPES} are both in {wishes.directory}: nothing to write. Fix: move one away, or"
            " name another --directory"
        )
    look = asyncio.run(look_at_database(replication, with_shapes=wishes.with_shapes and SHAPES in missing))
    texts = {ENV: _env(look, wishes, environ)}
    if usable := _usable(look):
        texts[SHAPES] = render_shapes(look.connected["PGDATABASE"], look.shapes or ())
    for name, text in texts.items():
        if name in missing:
            _write(wishes.directory / name, text, _MODES[name])
    for line in _report(look, wishes, missing, usable):
        print(line)
    return exit_codes.OK


def _env(look: DatabaseLook, wishes: Wishes, environ: Mapping[str, str]) -> str:
    return render_env(
        EnvFacts(
            look.connected["PGDATABASE"],
            connection_variables(environ, look.connected),
            wishes.region,
            wishes.stream,
            look.tables,
            look.size_bytes,
            look.without_identity,
        )
    )


def _usable(look: DatabaseLook) -> list[TableLook]:
    return [table for table in look.shapes or () if not table.problems]


def _write(path: Path, text: str, mode: int) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InitFailed(
            f"can't write {path}: {error.strerror}. Fix: name a --directory that this user may write to"
        ) from error


def _report(look: DatabaseLook, wishes: Wishes, missing: list[str], usable: list[TableLook]) -> list[str]:
    """What was written, what was not, and what comes next."""
    env, shapes = wishes.directory / ENV, wishes.directory / SHAPES
    lines = []
    if ENV in missing:
        lines.append(f"wrote {env}: the way to the database, without a password; readable for you alone")
    else:
        lines.append(f"kept  {env}, which was there")
    if SHAPES not in missing:
        lines.append(f"kept  {shapes}, which was there")
    elif look.shapes is None:
        lines.append(f"no {shapes}: it needs Spark. Fix: pip install 'penstock[spark]', then init again")
    elif not usable:
        lines.append(
            f"no {shapes}: of {len(look.shapes):,} tables none can be followed."
            " Fix: give one a primary key, then init again"
        )
    else:
        lines.append(
            f"wrote {shapes}: {len(usable):,} of {len(look.shapes):,} tables, each with its key and size"
        )
    unknown = {"AWS_REGION": wishes.region, "KINESIS_STREAM": wishes.stream}
    open_names = [name for name, value in unknown.items() if value is None]
    if ENV in missing and open_names:
        lines.append(f"next: fill in {' and '.join(open_names)} in {env}, then penstock check")
    else:
        lines.append("next: penstock check")
    if usable or SHAPES not in missing:
        lines.append(f"      penstock check --config {shapes}")
    return lines

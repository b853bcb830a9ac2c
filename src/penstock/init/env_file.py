"""The `.env` that `penstock init` writes: what is known is set, the rest stands there as a comment. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from penstock.model.size import format_size

CONNECTION: Final = ("PGHOST", "PGPORT", "PGUSER", "PGDATABASE")
"""What names a server, a role and a database, in this order."""
COPIED: Final = (
    "PGSERVICE",
    "PGSERVICEFILE",
    "PGHOSTADDR",
    "PGPASSFILE",
    "PGSSLMODE",
    "PGSSLROOTCERT",
    "PGSSLCERT",
    "PGSSLKEY",
    "PGCHANNELBINDING",
    "PGGSSENCMODE",
)
"""Further variables of libpq that are copied if they are set: none of them is a secret, or may hold one."""

_PLAIN: Final = re.compile(r"[A-Za-z0-9_./:@%+,-]+")
_NAMES_SHOWN: Final = 20


class EnvFacts(NamedTuple):
    """What is known when the file is written."""

    database: str
    connection: Mapping[str, str]
    """Variables of libpq, in the order in which they are written; no secrets."""
    region: str | None
    stream: str | None
    tables: int
    size_bytes: int
    without_identity: Sequence[str]
    """Tables whose updates and deletes the server leaves out."""


def render_env(facts: EnvFacts) -> str:
    """The file's text. Both a shell and `penstock` itself read it."""
    return "\n".join(
        [
            f"# Penstock's settings for the database {_word(facts.database)}, written by `penstock init`.",
            "# penstock reads this file in the directory in which it is started; the environment goes first.",
            "# Every setting: docs/operations.md. Keep the file to yourself: it may come to hold a password.",
            "",
            "# Postgres, by libpq's own variables.",
            *(_assignment(name, value) for name, value in facts.connection.items()),
            "# The password was not copied. ~/.pgpass is read by itself; or set one of these:",
            "#PGPASSFILE=",
            "#PGPASSWORD=",
            "",
            "# Kinesis, for `penstock capture`. Credentials come from the default AWS chain.",
            *_known_or_open("AWS_REGION", facts.region),
            *_known_or_open("KINESIS_STREAM", facts.stream),
            "# Positions in the records, and manifests that tell which of them are whole transactions:",
            "#KINESIS_MARKED_STREAM=true",
            "",
            "# The slot: created if it is missing, never dropped. Unset, capture and shapes have one each.",
            "#REPLICATION_SLOT=",
            "",
            f"# Capture carries every table: {facts.tables:,} here, {format_size(facts.size_bytes)}."
            " To carry some of them:",
            "#WAL2JSON_ADD_TABLES=public.*",
            *_silent_tables(facts.without_identity),
            "",
            "# Health, metrics and the page; a port for each process of a machine.",
            "#OPS_HOST=127.0.0.1",
            "#OPS_PORT=8088",
            "# Log lines for a person's eyes:",
            "#PENSTOCK_LOG_FORMAT=console",
            "",
        ]
    )


def connection_variables(environ: Mapping[str, str], connected: Mapping[str, str]) -> dict[str, str]:
    """What leads to the same server again: what was set, else what the connection came to be.

    A service file names the server itself; and `environ` may name several hosts, of which one was chosen.
    """
    by_service = bool(environ.get("PGSERVICE"))
    found = {
        name: environ.get(name) or ("" if by_service else connected.get(name, "")) for name in CONNECTION
    }
    found |= {name: environ.get(name, "") for name in COPIED}
    return {name: value for name, value in found.items() if value}


def _assignment(name: str, value: str) -> str:
    if _PLAIN.fullmatch(value):
        return f"{name}={value}"
    if value.isprintable() and not {"'", "\\"} & set(value) and "${" not in value:
        return f"{name}='{value}'"
    return f"#{name}=  (its value needs quotes that shells and .env files don't agree on: keep it elsewhere)"


def _known_or_open(name: str, value: str | None) -> list[str]:
    if value is not None:
        return [_assignment(name, value)]
    return [f"{name}=  # fill it in before `penstock capture`"]


def _silent_tables(names: Sequence[str]) -> list[str]:
    if not names:
        return []
    more = f" and {len(names) - _NAMES_SHOWN:,} more" if len(names) > _NAMES_SHOWN else ""
    listed = ", ".join(map(_word, names[:_NAMES_SHOWN]))
    return [
        "# They have no replica identity, so updates and deletes of them are left out by the server:",
        f"#   {listed}{more}",
        "#   Fix: a primary key, or ALTER TABLE ... REPLICA IDENTITY FULL",
    ]


def _word(name: str) -> str:
    """A name on one line."""
    return name if name.isprintable() else repr(name)

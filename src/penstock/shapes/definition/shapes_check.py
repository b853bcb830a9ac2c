"""What `penstock check --config` makes of the shapes file, the database behind it, and the storage."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import LiteralString

from psycopg import AsyncConnection

from penstock.changelog.errors import free_bytes
from penstock.decoding.plugins import decoder_for
from penstock.errors import PenstockError
from penstock.finding import Finding, Level
from penstock.model.relation import Relation
from penstock.model.shape import ShapesFile
from penstock.model.size import format_size
from penstock.postgres.catalog.table_catalog import ShapeCatalog
from penstock.postgres.catalog.table_facts import TableFacts, to_columns
from penstock.postgres.connection import QUALIFIED_NAMES
from penstock.postgres.preflight.postgres_check import PluginFacts, check_postgres
from penstock.postgres.slot.state import SlotState, read_slot
from penstock.settings.services import ShapesSettings
from penstock.shapes.definition.table_rules import refusals
from penstock.shapes.registry.places import open_registry

_MAY_READ: LiteralString = """
SELECT pg_catalog.quote_ident(current_user), pg_catalog.quote_ident(n.nspname),
       pg_catalog.has_schema_privilege(n.oid, 'USAGE'), pg_catalog.has_table_privilege(c.oid, 'SELECT'),
       NOT pg_catalog.row_security_active(c.oid)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s
"""


@dataclass
class Read:
    """What was read on the way, for those who look at the rest."""

    facts: Mapping[Relation, TableFacts] = field(default_factory=dict)
    """Of the tables that exist."""


async def look_at_shapes(
    settings: ShapesSettings, file: ShapesFile, read: Read, *, from_stream: bool = False
) -> list[Finding]:
    """Every finding about the server and the shapes' tables; fills `read`.

    `from_stream`: changes come from a stream, so a slot of the shapes' own is one that was left behind.
    """
    decoder = decoder_for(settings.replication.output_plugin)

    async def look_at_tables(session: AsyncConnection, plugin: PluginFacts) -> list[Finding]:
        async def same_session() -> AsyncConnection:
            return session

        catalog = ShapeCatalog(same_session, decoder)
        read.facts = await catalog.facts({shape.table for shape in file.shapes})
        names = await catalog.table_names()
        lines = refusals(file, read.facts, decoder, names, from_stream=from_stream)
        findings = [Finding.from_error("shapes", PenstockError(line)) for line in lines]
        if not findings:
            findings.append(Finding.ok("shapes", f"every one of {len(file.shapes)} fits its table"))
        findings += [
            finding
            for relation in sorted({leaf.relation for facts in read.facts.values() for leaf in facts.leaves})
            if (finding := await _unreadable(session, relation)) is not None
        ]
        findings += _not_numbers(file, read.facts, plugin)
        left = await read_slot(session, settings.replication.slot) if from_stream else None
        return findings if left is None else [*findings, _left_behind(left)]

    findings = await check_postgres(
        settings.replication,
        settings.leader,
        options=decoder.row_options()[-1],
        look_at_tables=look_at_tables,
        role="shapes",
        session_options=QUALIFIED_NAMES,
    )
    # What a missing slot means is another matter there.
    return [each for each in findings if not from_stream or each.subject != "slot"]


def _left_behind(slot: SlotState) -> Finding:
    size = format_size(slot.retained_bytes or 0)
    return Finding.warn(
        "old slot",
        f"slot {slot.name}, from which shapes read before, is still there and keeps {size} of WAL",
        "nothing, to go back to it some day: penstock shapes --from moves it along while it runs. Else drop"
        f" it: SELECT pg_drop_replication_slot('{slot.name}')",
    )


def check_storage_of(file: ShapesFile, log_directory: Path | None, min_free_bytes: int) -> list[Finding]:
    """Whether the storage and the log's directory can be written, and what the registry says. Blocks.

    `log_directory` None: there is no log.
    """
    findings = [] if log_directory is None else _log_place(log_directory, min_free_bytes)
    if "://" not in file.registry_at:
        findings.insert(0, _storage(Path(file.registry_at)))
    try:
        registry = open_registry(file.registry_at).read()
    except PenstockError as error:
        return [*findings, Finding.from_error("registry", error)]
    if registry is None:
        return [*findings, Finding.ok("registry", "there is none yet: every shape begins with a snapshot")]
    awaiting = [name for name, entry in registry.shapes.items() if entry.awaits_snapshot is not None]
    found = f"{len(registry.shapes)} shapes of system {registry.system_id}, fed from slot {registry.slot}"
    if awaiting:
        found += f"; {', '.join(awaiting)} await a snapshot"
    return [*findings, Finding.ok("registry", found)]


def _log_place(directory: Path, min_free_bytes: int) -> list[Finding]:
    findings = [_writable("log", directory)]
    room = free_bytes(_existing(directory))
    if room < 2 * min_free_bytes:
        findings.append(
            Finding.fail(
                "log",
                f"{directory} has {room} bytes left, and LOG_MIN_FREE_BYTES is {min_free_bytes}",
                "make room there, or set LOG_DIR to another disk",
            )
        )
    return findings


async def _unreadable(session: AsyncConnection, relation: Relation) -> Finding | None:
    """A partition is read by itself, so the right to read its parent doesn't help."""
    row = await (await session.execute(_MAY_READ, relation)).fetchone()
    if row is None:
        return None
    role, schema, *rights = row
    name = relation
    fixes = (
        f"GRANT USAGE ON SCHEMA {schema} TO {role}",
        f"GRANT SELECT ON {name} TO {role}",
        f"ALTER ROLE {role} BYPASSRLS: row-level security hides rows from it",
    )
    lacking = [fix for fix, right in zip(fixes, rights, strict=True) if not right]
    if not lacking:
        return None
    return Finding.fail(
        "shapes", f"the role may not read {name}: its snapshot would fail", "; ".join(lacking)
    )


def _not_numbers(
    file: ShapesFile, facts: Mapping[Relation, TableFacts], plugin: PluginFacts
) -> list[Finding]:
    if plugin.has_strings:
        return []
    found = [
        f"{shape.name}.{column.name}"
        for shape in file.shapes
        if (known := facts.get(shape.table)) is not None
        for column in to_columns(known, shape.columns)
        if column.lake.null_may_be_nan
        # There null is what NaN becomes in any case.
        and not (shape.numeric_nan == "null" and column.lake.lacks_nan)
    ]
    if not found:
        return []
    return [
        Finding.warn(
            "numbers",
            f"wal2json before 2.6 writes NaN and infinities as null, in {', '.join(found[:10])}"
            + (f" and {len(found) - 10} more" if len(found) > 10 else ""),
            "upgrade wal2json if these columns can hold them",
        )
    ]


def _storage(directory: Path) -> Finding:
    """A commit appears by a hard link, which never replaces another one."""
    found = _writable("storage", directory)
    if found.level is not Level.FAIL:
        try:
            with tempfile.TemporaryDirectory(prefix=".penstock-", dir=_existing(directory)) as place:
                Path(place, "file").touch()
                Path(place, "link").hardlink_to(Path(place, "file"))
        except OSError as error:
            return Finding.fail(
                "storage",
                f"{directory} can't hold hard links: {error.strerror or error}",
                "name a directory on a POSIX file system (ext4, xfs, NFS)",
            )
    return found


def _writable(subject: str, directory: Path) -> Finding:
    place = _existing(directory)
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"penstock")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return Finding.fail(
            subject,
            f"{directory} can't be written: {error.strerror or error}",
            f"move away the file {place}, or name another directory"
            if isinstance(error, NotADirectoryError)
            else "give this user the right to write there, or name another directory",
        )
    return Finding.ok(subject, f"{directory} can be written")


def _existing(directory: Path) -> Path:
    """The directory, or the nearest one above it that exists."""
    return next(place for place in (directory, *directory.absolute().parents) if place.exists())

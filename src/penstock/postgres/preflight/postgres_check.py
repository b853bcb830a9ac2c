"""The Postgres side of `penstock check`.

It changes nothing. Whether the plugin loads and takes our options is tried on a temporary slot, which ends
with its session.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import AsyncConnection, errors

from penstock.decoding.decoder import Decoder
from penstock.decoding.plugins import decoder_for
from penstock.errors import NoSpareSlot, PostgresError, RoleLacksReplication, WalLevelTooLow
from penstock.finding import Finding
from penstock.postgres.connection import (
    application_name,
    connect,
    connect_replication,
    connection_parameters,
    one_line,
)
from penstock.postgres.leader.lock import LockHolder, lock_holder, slot_hash64
from penstock.postgres.leader.synchronous import read_settings
from penstock.postgres.preflight import queries as ask
from penstock.postgres.preflight import server_rules as rules
from penstock.postgres.preflight.tables import TableRules, judge_tables
from penstock.postgres.slot.state import SlotState, check_server, read_slot, translate
from penstock.settings.postgres import LeaderSettings, ReplicationSettings
from penstock.settings.services import CaptureSettings

ANSWER_S: Final = 10.0
"""How long a question may take."""
TRIAL_SLOT_S: Final = 3.0
"""How long the trial slot may wait for open transactions."""

_ROLE: Final = "check"
_NO_SESSION: Final = (
    "correct PGHOST, PGPORT, PGUSER, PGPASSWORD or PGDATABASE; the server must be a primary, not a standby"
)


class PluginFacts(NamedTuple):
    """What a trial of the plugin has shown."""

    decoder: Decoder
    """Reads what it writes."""
    has_strings: bool
    """Whether it takes the best options for rows, so that numbers can come as strings."""


LookAtTables = Callable[[AsyncConnection, PluginFacts], Awaitable[list[Finding]]]


async def check_capture_postgres(settings: CaptureSettings) -> list[Finding]:
    """Every finding about the server and the tables for a capture."""
    table_rules = TableRules(
        add_tables=settings.content.add_tables,
        filter_tables=settings.content.filter_tables,
        by_primary_key=settings.partition_key.mode == "primary_key",
        fallback=settings.partition_key.fallback,
        numeric_as_string=settings.content.numeric_as_string,
    )

    async def look_at_tables(session: AsyncConnection, plugin: PluginFacts) -> list[Finding]:
        tables = await ask.read_tables(session)
        newer = f"{plugin.decoder.plugin} {plugin.decoder.strings_since}"
        return judge_tables(tables, table_rules, upgrade_to=None if plugin.has_strings else newer)

    return await check_postgres(
        settings.replication,
        settings.leader,
        options=decoder_for(settings.replication.output_plugin).record_options(settings.content.of_records),
        look_at_tables=look_at_tables,
    )


async def check_postgres(
    replication: ReplicationSettings,
    leader: LeaderSettings,
    *,
    options: Mapping[str, str],
    look_at_tables: LookAtTables,
    role: str = "capture",
    session_options: str = "",
) -> list[Finding]:
    """Every finding about the server and its tables; a server that can't be reached is one, too."""
    parameters = connection_parameters(
        connect_timeout_s=replication.connect_timeout_s,
        silence_limit_s=ANSWER_S,
        role=_ROLE,
        session=session_options,
    )
    try:
        async with asyncio.timeout(ANSWER_S):
            session = await connect(parameters)
    except (PostgresError, TimeoutError) as error:
        return [_unasked("server", error)._replace(fix=_NO_SESSION)]
    try:
        preflight = _Preflight(replication, leader, options, look_at_tables, parameters, session, role)
        return await preflight.run()
    finally:
        session.pgconn.finish()


class _Preflight:
    """Takes the steps one after the other. A step that fails is a finding and stops no other."""

    def __init__(
        self,
        replication: ReplicationSettings,
        leader: LeaderSettings,
        options: Mapping[str, str],
        look_at_tables: LookAtTables,
        parameters: dict[str, Any],
        session: AsyncConnection,
        role: str,
    ) -> None:
        self._role = role
        self._replication = replication
        self._leader = leader
        self._options = options
        self._tables = look_at_tables
        self._parameters = parameters
        self._session = session
        self._plugin = replication.output_plugin
        self._slot: SlotState | None = None
        self._holder: LockHolder | None = None
        self._plugin_has_strings = False

    async def run(self) -> list[Finding]:
        steps: list[tuple[str, Callable[[], Awaitable[list[Finding]]]]] = [
            ("server", self._look_at_server),
            ("wal_level", self._look_at_wal_level),
            ("role", self._look_at_role),
            ("slot", self._look_at_slot),
            ("leader", self._look_at_leader),
            ("spare slots", self._look_at_spare_slots),
            ("walsenders", self._look_at_walsenders),
            ("synchronous", self._look_at_synchronous),
            ("replication", self._try_replication),
            ("plugin", self._try_plugin),
            ("retention", self._look_at_retention),
            ("tables", self._look_at_tables),
        ]
        if self._role == "capture":
            # Shapes have a registry instead.
            steps.insert(-1, ("note", self._look_at_note))
        findings: list[Finding] = []
        for subject, step in steps:
            try:
                async with asyncio.timeout(ANSWER_S):
                    findings += await step()
            except (psycopg.Error, PostgresError, TimeoutError) as error:
                findings.append(_unasked(subject, error))
        return findings

    async def _look_at_server(self) -> list[Finding]:
        await ask.limit_statements(self._session, ANSWER_S)
        return [rules.judge_server(await ask.read_server(self._session))]

    async def _look_at_wal_level(self) -> list[Finding]:
        return [rules.judge_wal_level(await ask.read_wal_level(self._session))]

    async def _look_at_role(self) -> list[Finding]:
        return [rules.judge_role(await ask.read_role(self._session))]

    async def _look_at_slot(self) -> list[Finding]:
        name = self._replication.slot
        self._slot = await read_slot(self._session, name)
        return [rules.judge_slot(name, self._slot, self._plugin)]

    async def _look_at_leader(self) -> list[Finding]:
        override = self._leader.lock_key_override
        key = slot_hash64(self._replication.slot) if override is None else override
        self._holder = await lock_holder(self._session, key)
        user = None
        if self._slot is not None and self._slot.active_pid is not None:
            pid = self._slot.active_pid
            user = rules.SlotUser(pid, await ask.describe_session(self._session, pid))
        return [rules.judge_leader(user, self._holder)]

    async def _look_at_spare_slots(self) -> list[Finding]:
        exists = self._slot is not None
        return [rules.judge_spare_slots(await ask.read_slots(self._session), slot_exists=exists)]

    async def _look_at_walsenders(self) -> list[Finding]:
        leads = self._holder is not None
        return [rules.judge_walsenders(await ask.read_walsenders(self._session), someone_leads=leads)]

    async def _look_at_synchronous(self) -> list[Finding]:
        names, name = await read_settings(self._session)
        # Unless PGAPPNAME names them all, sessions have the names of their roles.
        if name == application_name(_ROLE):
            name = application_name(f"{self._role} {self._replication.slot}")
        return [rules.judge_synchronous(names, name)]

    async def _look_at_note(self) -> list[Finding]:
        return [rules.judge_note(may_keep=await ask.may_keep_note(self._session))]

    async def _try_replication(self) -> list[Finding]:
        walsender = await connect_replication(self._parameters, wal_sender_timeout_s=self._leader.timeout_s)
        try:
            system_id, timeline = await ask.read_system(walsender)
        finally:
            walsender.pgconn.finish()
        return [Finding.ok("replication", f"a walsender answers: system id {system_id}, timeline {timeline}")]

    async def _try_plugin(self) -> list[Finding]:
        try:
            async with self._trial_session() as session:
                await check_server(session, self._plugin)
                return await self._try_slot(session)
        except (WalLevelTooLow, NoSpareSlot, RoleLacksReplication) as error:
            reason = Finding.from_error("plugin", error)
            return [Finding.warn("plugin", f"{self._plugin} could not be tried: {reason.found}", reason.fix)]

    async def _try_slot(self, session: AsyncConnection) -> list[Finding]:
        name = f"penstock_check_{secrets.token_hex(4)}"
        exists = self._slot is not None
        try:
            await ask.create_trial_slot(session, name, self._plugin)
        except errors.QueryCanceled:
            # The plugin is loaded before the wait begins.
            blockers = await ask.count_blockers(session)
            return [rules.judge_plugin(self._plugin, blockers=blockers, slot_exists=exists)]
        except psycopg.Error as error:
            raise translate(error, slot=name, plugin=self._plugin) from error
        plugin = rules.judge_plugin(self._plugin, blockers=None, slot_exists=exists)
        return [plugin, await self._try_options(session, name)]

    async def _try_options(self, session: AsyncConnection, slot: str) -> Finding:
        try:
            await ask.try_options(session, slot, self._options)
        except errors.QueryCanceled:
            return Finding.warn("options", f"{self._plugin} did not answer within {TRIAL_SLOT_S:.0f} s")
        except psycopg.Error as error:
            return Finding.from_error("options", translate(error, slot=slot, plugin=self._plugin))
        # Last: an error ends the trial slot.
        with contextlib.suppress(psycopg.Error):
            await ask.try_options(session, slot, decoder_for(self._plugin).row_options()[0])
            self._plugin_has_strings = True
        return Finding.ok("options", f"{self._plugin} takes ours")

    async def _look_at_retention(self) -> list[Finding]:
        return rules.judge_retention(await ask.read_retention(self._session))

    async def _look_at_tables(self) -> list[Finding]:
        return await self._tables(
            self._session, PluginFacts(decoder_for(self._plugin), self._plugin_has_strings)
        )

    @contextlib.asynccontextmanager
    async def _trial_session(self) -> AsyncIterator[AsyncConnection]:
        session = await connect(self._parameters)
        try:
            await ask.limit_statements(session, TRIAL_SLOT_S)
            yield session
        finally:
            session.pgconn.finish()


def _unasked(subject: str, error: Exception) -> Finding:
    """A question without an answer."""
    if isinstance(error, PostgresError):
        return Finding.from_error(subject, error)
    if isinstance(error, TimeoutError):
        return Finding.fail(subject, f"no answer from Postgres within {ANSWER_S:.0f} s")
    return Finding.fail(subject, f"Postgres could not be asked: {one_line(error)}")

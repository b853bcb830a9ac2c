"""What `penstock check` makes of a server's facts. Knows no connection."""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.errors import PostgresError
from penstock.finding import Finding
from penstock.model.lsn import format_lsn
from penstock.model.size import format_size
from penstock.postgres.leader.lock import LockHolder
from penstock.postgres.leader.synchronous import names_standby, synchronous_standby
from penstock.postgres.slot.state import SlotState, check_slot

OLDEST_SERVER: Final = 140000
MUCH_RETAINED_BYTES: Final = 1 << 30


class CheckedServer(NamedTuple):
    """Which server this is."""

    version_num: int
    version: str
    database: str
    role: str


class RoleFacts(NamedTuple):
    """What the connected role may do."""

    name: str
    superuser: bool
    replication: bool
    rds_replication: bool


class Places(NamedTuple):
    """A limit of the server and how much of it is in use."""

    used: int
    limit: int

    @property
    def spare(self) -> int:
        """How many are left."""
        return max(0, self.limit - self.used)


class Retention(NamedTuple):
    """Settings under which the server gives a slot up."""

    keep_mb: int
    """max_slot_wal_keep_size; -1: no limit."""
    idle_timeout: str | None
    """idle_replication_slot_timeout; None where the server doesn't know it."""


class SlotUser(NamedTuple):
    """A session that has our slot or our lock."""

    pid: int
    description: str | None

    def __str__(self) -> str:
        return f"pid {self.pid}" + (f" ({self.description})" if self.description else "")


def judge_server(server: CheckedServer) -> Finding:
    """The server's version."""
    found = f"PostgreSQL {server.version}, database {server.database!r}, role {server.role!r}"
    if server.version_num < OLDEST_SERVER:
        return Finding.fail("server", found, "upgrade: PostgreSQL 14 is the oldest that Penstock supports")
    return Finding.ok("server", found)


def judge_wal_level(level: str) -> Finding:
    """Whether WAL holds what decoding needs."""
    if level == "logical":
        return Finding.ok("wal_level", "logical")
    return Finding.fail(
        "wal_level",
        level,
        "ALTER SYSTEM SET wal_level = 'logical' and restart Postgres"
        " (on RDS: rds.logical_replication = 1 in the parameter group)",
    )


def judge_role(role: RoleFacts) -> Finding:
    """Whether the role may replicate."""
    rights = {
        "REPLICATION": role.replication,
        "superuser": role.superuser,
        "rds_replication": role.rds_replication,
    }
    held = [name for name, has in rights.items() if has]
    if held:
        return Finding.ok("role", f"{role.name!r} may replicate ({', '.join(held)})")
    return Finding.fail(
        "role",
        f"{role.name!r} may not replicate",
        f"ALTER ROLE {role.name} REPLICATION (on RDS: GRANT rds_replication TO {role.name})",
    )


def judge_spare_slots(slots: Places, *, slot_exists: bool) -> Finding:
    """Whether the slot can be created."""
    found = f"{slots.used} of {slots.limit} in use"
    if slots.spare or slot_exists:
        return Finding.ok("spare slots", found)
    return Finding.fail(
        "spare slots",
        f"{found}: the slot can't be created",
        "raise max_replication_slots and restart Postgres",
    )


def judge_walsenders(walsenders: Places, *, someone_leads: bool) -> Finding:
    """Whether a leader and a standby can connect; each of them takes a walsender."""
    found = f"{walsenders.used} of {walsenders.limit} in use"
    fix = "raise max_wal_senders and restart Postgres"
    if not walsenders.spare:
        return Finding.fail("walsenders", f"{found}: nobody else can connect for replication", fix)
    if walsenders.spare == 1 and not someone_leads:
        return Finding.warn("walsenders", f"{found}: the last one goes to the leader, none to a standby", fix)
    return Finding.ok("walsenders", found)


def judge_slot(name: str, slot: SlotState | None, plugin: str) -> Finding:
    """The slot itself."""
    if slot is None:
        return Finding.ok(
            "slot",
            f"{name!r} does not exist",
            "it is created at the first start, and earlier changes will not come from it",
        )
    try:
        check_slot(slot, plugin)
    except PostgresError as error:
        return Finding.from_error("slot", error)
    retained = slot.retained_bytes or 0
    found = (
        f"{name!r}, confirmed up to {format_lsn(slot.start_lsn)}, retains {format_size(retained)} of WAL,"
        f" wal_status {slot.wal_status}"
    )
    if slot.wal_status == "unreserved":
        return Finding.warn(
            "slot", f"{found}: the next checkpoint can make it lost", "let its reader catch up, now"
        )
    if slot.active_pid is None and retained > MUCH_RETAINED_BYTES:
        return Finding.warn("slot", f"{found}, and nobody reads it", "start its reader again")
    return Finding.ok("slot", found)


def judge_leader(user: SlotUser | None, holder: LockHolder | None) -> Finding:
    """Who leads: `user` has the slot, `holder` has the lock."""
    if user is not None and (holder is None or holder.pid != user.pid):
        return Finding.fail(
            "leader",
            f"{user} reads the slot without holding its lock, so it is no Penstock with these settings",
            "stop that reader, or choose another REPLICATION_SLOT; if it is a Penstock,"
            " give both the same LEADER_LOCK_KEY_OVERRIDE",
        )
    if holder is not None:
        return Finding.ok(
            "leader", f"{SlotUser(holder.pid, holder.description)} leads", "a further process stands by"
        )
    return Finding.ok("leader", "nobody leads")


def judge_synchronous(setting: str, application_name: str) -> Finding:
    """Whether commits would wait for our walsender."""
    if names_standby(setting, application_name):
        return Finding.from_error("synchronous", synchronous_standby(setting, application_name))
    return Finding.ok("synchronous", "no commit waits for us")


def judge_note(*, may_keep: bool) -> Finding:
    """Whether what was confirmed can be noted in Postgres."""
    if may_keep:
        return Finding.ok("note", "what is confirmed can be noted in a large object")
    return Finding.warn(
        "note",
        "the role may not use large objects: a slot that somebody drops and creates again won't be noticed"
        " after a restart",
        "GRANT EXECUTE ON FUNCTION lo_from_bytea(oid, bytea), lo_get(oid), lo_put(oid, bigint, bytea)"
        " TO the role",
    )


def judge_retention(retention: Retention) -> list[Finding]:
    """What the server does with a slot that is not read."""
    watch = "alarm on penstock_slot_retained_bytes"
    if retention.keep_mb < 0:
        findings = [
            Finding.ok(
                "retention",
                "max_slot_wal_keep_size is -1: the slot is never given up, and can fill the server's disk",
                watch,
            )
        ]
    else:
        limit = format_size(retention.keep_mb << 20)
        findings = [
            Finding.warn(
                "retention",
                f"max_slot_wal_keep_size is {limit}: a slot further behind is lost, with its changes",
                f"leave room for the longest outage you mean to survive, and {watch}",
            )
        ]
    if retention.idle_timeout not in (None, "0"):
        findings.append(
            Finding.warn(
                "retention",
                f"idle_replication_slot_timeout is {retention.idle_timeout}:"
                " a slot that nobody reads for so long is lost, with its changes",
                "ALTER SYSTEM SET idle_replication_slot_timeout = 0 and reload",
            )
        )
    return findings


def judge_plugin(plugin: str, *, blockers: int | None, slot_exists: bool) -> Finding:
    """A plugin that loads. `blockers`: a trial slot had to wait for so many open transactions."""
    found = f"{plugin} is installed and allowed"
    if blockers is None or slot_exists:
        return Finding.ok("plugin", found)
    return Finding.warn(
        "plugin",
        f"{found}, but creating the slot has to wait for open write transactions ({blockers} now)",
        "end them: SELECT pid, xact_start FROM pg_stat_activity WHERE backend_xid IS NOT NULL;"
        " SELECT gid, prepared FROM pg_prepared_xacts",
    )

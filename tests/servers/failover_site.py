"""A standby that is promoted under a marked stream."""

from __future__ import annotations

import shutil

from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from tests.servers.capture_site import CaptureSite, wait_until

MARKED = {"KINESIS_MARKED_STREAM": "true", "KINESIS_MARK_INTERVAL_MS": 20}
SLOT = "marked"


class FailoverSite:
    """A primary and its standby, and captures that follow whichever leads."""

    def __init__(
        self, old: PrivatePostgres, new: PrivatePostgres, kinesis: LocalKinesis, stream: str
    ) -> None:
        self.old, self.new = old, new
        self.hosts = {"PGHOST": "127.0.0.1,127.0.0.1", "PGPORT": f"{old.port},{new.port}"}
        self.before, self.after = (
            CaptureSite(server, "postgres", kinesis, stream, slot=SLOT, **MARKED, **self.hosts)
            for server in (old, new)
        )

    def replicate(self) -> None:
        """Wait until the standby has all of the primary's log."""
        ((end,),) = self.old.psql("SELECT pg_current_wal_insert_lsn()::text")
        replayed = f"SELECT pg_last_wal_replay_lsn() >= '{end}'"
        wait_until(lambda: self.new.psql(replayed) == [(True,)], "the standby has it all")

    def cut_off(self) -> None:
        """Let the standby get no more of the primary's log."""
        self.new.psql("ALTER SYSTEM SET primary_conninfo = ''")
        self.new.psql("SELECT pg_reload_conf()")
        wait_until(lambda: not self.new.psql("SELECT pid FROM pg_stat_wal_receiver"), "nobody receives")

    def carry_the_slot_over(self) -> None:
        """As failover managers do where the server itself can't: the slot's file, to a stopped standby."""
        self.old.psql("CHECKPOINT")  # what is on disk may be behind
        self.replicate()
        self.new.stop()
        of_slot = ("data", "pg_replslot", SLOT)
        shutil.copytree(self.old.directory.joinpath(*of_slot), self.new.directory.joinpath(*of_slot))
        owner = (self.new.directory / "data").stat()
        for path in (self.new.directory.joinpath(*of_slot), *self.new.directory.joinpath(*of_slot).iterdir()):
            shutil.chown(path, owner.st_uid, owner.st_gid)
        self.new.start()

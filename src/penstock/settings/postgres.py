"""Settings of the way to Postgres, and of leading."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from penstock.decoding.decoder import RecordContent
from penstock.settings.kinds import (
    Duration,
    Flag,
    Group,
    KeyDerivation,
    LockKey,
    OutputPlugin,
    SlotName,
    Text,
)
from penstock.settings.rules import seconds, whole_number


class ReplicationSettings(Group):
    """The slot and the way to it. The server itself is named by libpq's own variables."""

    slot: SlotName = Field(default="etl_slot_wal2json", validation_alias="REPLICATION_SLOT")
    output_plugin: OutputPlugin = Field(default="wal2json", validation_alias="OUTPUT_PLUGIN")
    connect_timeout_s: Duration = Field(default=5.0, validation_alias="CONNECT_TIMEOUT_S")
    note: Flag = Field(default=True, validation_alias="SLOT_NOTE")
    """Whether capture keeps a note of what it confirmed in the database. Shapes have a registry instead."""


class ContentSettings(Group):
    """What a record tells, and of which tables."""

    format_version: Annotated[int, whole_number(2, 2)] = Field(
        default=2, validation_alias="WAL2JSON_FORMAT_VERSION"
    )
    include_timestamp: Flag = Field(default=True, validation_alias="WAL2JSON_INCLUDE_TIMESTAMP")
    include_lsn: Flag = Field(default=True, validation_alias="WAL2JSON_INCLUDE_LSN")
    include_pk: Flag = Field(default=True, validation_alias="WAL2JSON_INCLUDE_PK")
    include_transactions: Flag = Field(default=False, validation_alias="WAL2JSON_INCLUDE_TRANSACTIONS")
    """Whether begin and commit records are published; the server sends them in any case."""
    numeric_as_string: Flag = Field(default=False, validation_alias="WAL2JSON_NUMERIC_AS_STRING")
    add_tables: Text | None = Field(default=None, validation_alias="WAL2JSON_ADD_TABLES")
    filter_tables: Text | None = Field(default=None, validation_alias="WAL2JSON_FILTER_TABLES")

    @property
    def of_records(self) -> RecordContent:
        """The same, as a decoder takes it."""
        return RecordContent(
            timestamp=self.include_timestamp,
            lsn=self.include_lsn,
            pk=self.include_pk,
            xid=self.include_transactions,
            numeric_as_string=self.numeric_as_string,
            add_tables=self.add_tables,
            filter_tables=self.filter_tables,
        )


class LeaderSettings(Group):
    """Who leads, how soon another takes over, and when a leader lets go."""

    lock_key_derivation: KeyDerivation = Field(
        default="slot_hash64", validation_alias="LEADER_LOCK_KEY_DERIVATION"
    )
    lock_key_override: LockKey | None = Field(default=None, validation_alias="LEADER_LOCK_KEY_OVERRIDE")
    timeout_s: Annotated[float, seconds(1, 3600)] = Field(default=10.0, validation_alias="LEADER_TIMEOUT_S")
    standby_retry_interval_s: Duration = Field(default=5.0, validation_alias="STANDBY_RETRY_INTERVAL_S")
    shutdown_drain_s: Annotated[float, seconds(0)] = Field(default=10.0, validation_alias="SHUTDOWN_DRAIN_S")
    sink_outage_disconnect_s: Duration = Field(default=30.0, validation_alias="SINK_OUTAGE_DISCONNECT_S")

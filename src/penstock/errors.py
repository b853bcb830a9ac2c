"""The error tree.

    PenstockError
    ├── SettingsError                 a bad variable (settings/errors.py); exit 2
    ├── OpsPortTaken                  the ops port can't be bound (ops/server.py); exit 2
    ├── NoAnswer                      `status` has nobody to ask (ops/status_command.py); exit 2
    ├── InitFailed                    `init` can't write a file (init/command.py); exit 2
    ├── LocalServerError              a private server can't run here (local/errors.py)
    ├── ProcessFailed, …              a child process of demo, bench or tests (local/penstock_process.py)
    ├── ShapeFileError                a bad shapes file (shapes/definition/shapes_file.py); exit 2
    ├── ShapeStopped                  a table was altered; until somebody acts (shapes/flushing/work.py)
    ├── ShapeStalled                  a shape that makes no progress under `--once` (shapes/ending.py); exit 1
    ├── RegistryError                 the registry can't be read or written (shapes/registry/registry.py)
    ├── ChangeLogBroken, …            the log on disk can't be trusted (changelog/errors.py)
    ├── DecodeError                   a value that doesn't fit its column (decoding/rows.py)
    │   ├── LayoutChanged             a frame of a table that was altered
    │   ├── RowIncomplete             a change without a value that is needed
    │   └── NanRefused                NaN, where the lake's type has none
    ├── SparkFailed, SparkError, …    Spark doesn't start, or a job failed (lake/errors.py)
    ├── SparkGone                     Spark's Java has ended (lake/errors.py); exit 4
    ├── JarsMissing, LogStoreMissing  what Spark needs isn't there (lake/errors.py)
    ├── ConfRefused, StorageRefused   what would make tables unsafe (lake/errors.py)
    ├── CannotCompare                 `verify` has no answer (lake/errors.py); exit 2
    ├── TableConflict, ForeignCommit  a table that somebody else has written (lake/errors.py)
    ├── ChangesUnusable, TableAltered the log has changes that only a snapshot helps with (lake/errors.py)
    ├── StreamReadError               a stream can't be read (kinesis/read/errors.py)
    │   └── RecordsExpired            ... because its retention has passed what is needed
    ├── KinesisOptionError            a bad option of a stream (sources/kinesis_options.py)
    ├── LogQueryError                 a query of the log that can't be answered (sources/log_source.py)
    ├── QuarantineError               the quarantine can't store a payload (kinesis/write/quarantine.py)
    ├── KeyRecovered                  what waited behind a failing key has to be read again
    ├── SinkOutage                    nothing accepted for SINK_OUTAGE_DISCONNECT_S
    └── PostgresError
        ├── ConnectionFailed          unreachable, refused, wrong password
        ├── LineLost                  the replication connection ended
        │   ├── DecodingFailed        ... because the server met an error while it decoded
        │   ├── LineStale             ... because nobody vouches for it any more
        │   └── LockLost              ... because the lock is gone
        ├── NoteUnwritten, …          the slot's note can't be written now (postgres/slot/note.py)
        ├── LockLingers               the lock is still held by a session that we have ended
        ├── SlotBusy                  the slot is active for a walsender that isn't ours
        ├── SlotMoved                 the slot was moved between our look at it and our stream
        ├── ProtocolViolation         a frame that we don't know
        ├── SnapshotStale             a table was rewritten under its snapshot (postgres/snapshot/export.py)
        └── NeedsOperator             nothing changes until somebody acts; retried slowly
            ├── SlotInvalid           wal_status is `lost`: its WAL is gone
            ├── SynchronousStandby    commits would wait for our walsender (postgres/leader/synchronous.py)
            ├── SlotMismatch          the slot is of another kind, plugin or database
            ├── PluginForbidden       output_plugin_libraries does not list wal2json
            ├── PluginMissing         wal2json is not installed on the server
            ├── PluginOptionRefused   the server's wal2json doesn't take one of our options
            ├── RoleLacksReplication  the role may not replicate
            ├── WalLevelTooLow        wal_level is not logical
            ├── TableUnreadable       the role can't read all rows of a table (postgres/snapshot/export.py)
            ├── ShapesRefused         shapes, storage and database don't go together (shapes/preparation.py)
            └── NoSpareSlot           max_replication_slots or max_wal_senders is used up

Every error takes one string, the sentence that an operator reads; that keeps them picklable. What each of
them means for the leader cycle stands in service/retry_policy.py.
"""

from __future__ import annotations


class PenstockError(Exception):
    """Anything that Penstock itself reports."""


class SinkOutage(PenstockError):
    """The destination took nothing for SINK_OUTAGE_DISCONNECT_S while something was pending."""


class KeyRecovered(PenstockError):
    """A key works again whose changes were left with Postgres: they have to be read again."""


class PostgresError(PenstockError):
    """Something between us and Postgres."""


class ConnectionFailed(PostgresError):
    """No connection could be made."""


class LineLost(PostgresError):
    """The replication connection ended."""


class DecodingFailed(LineLost):
    """The server raised an error while it decoded; it may do so again at the same place."""


class LineStale(LineLost):
    """Neither a frame nor the watchdog vouches for the line within the freshness limit."""


class LockLost(LineLost):
    """The watchdog saw that our walsender no longer holds the lock."""


class LockLingers(PostgresError):
    """The server has not noticed yet that our former session is gone, and its lock with it."""


class SlotBusy(PostgresError):
    """The slot is still active for another walsender."""


class SlotMoved(PostgresError):
    """Somebody moved the slot between our look at it and our stream: what was decided on is no longer so."""


class ProtocolViolation(PostgresError):
    """The server sent something outside the replication protocol that we know."""


class NeedsOperator(PostgresError):
    """A configuration that only an operator can change."""


class SlotInvalid(NeedsOperator):
    """The slot's WAL was removed."""


class SynchronousStandby(NeedsOperator):
    """The server takes our walsender for a synchronous standby."""


class SlotMismatch(NeedsOperator):
    """A slot of that name exists and isn't ours to use."""


class PluginForbidden(NeedsOperator):
    """The server's output_plugin_libraries doesn't allow wal2json."""


class PluginMissing(NeedsOperator):
    """The server has no wal2json library."""


class PluginOptionRefused(NeedsOperator):
    """The server's wal2json doesn't know an option, or not this value of it."""


class RoleLacksReplication(NeedsOperator):
    """The role has no REPLICATION attribute."""


class WalLevelTooLow(NeedsOperator):
    """wal_level isn't logical."""


class NoSpareSlot(NeedsOperator):
    """The server has no free replication slot or walsender."""

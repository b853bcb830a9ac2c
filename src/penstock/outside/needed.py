"""Where in a stream shapes would go on, as the next start would decide it."""

from __future__ import annotations

from penstock.abandonable import in_daemon_thread
from penstock.model.shape import ShapesFile
from penstock.model.stream_position import StreamPosition
from penstock.outside.judgement import decide_actions, needed_position
from penstock.outside.postgres_look import PostgresLook
from penstock.outside.shapes_look import look_at_storage
from penstock.settings.services import ShapesSettings


async def needed_now(settings: ShapesSettings, file: ShapesFile) -> StreamPosition | None:
    """Where the slowest shape needs changes from; None: all begin with a snapshot.

    PostgresError if the server can't be asked, RegistryError if the registry can't be read.
    """
    look = PostgresLook(settings.replication, settings.leader)
    try:
        postgres = await look.look()
        system_id = None if postgres.server is None else postgres.server.system_id
        storage = await in_daemon_thread(look_at_storage, file, system_id)
        wal_lsn = await look.wal_lsn()
    finally:
        look.close()
    slot = settings.replication.slot
    actions = decide_actions(slot, postgres, file, storage, wal_lsn, from_stream=True)
    return needed_position(postgres, storage, actions)

"""`penstock status`: asks a process, or looks from outside; once, or again and again."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Final, NamedTuple

from penstock.abandonable import in_daemon_thread
from penstock.errors import PenstockError, PostgresError
from penstock.model.shape import ShapesFile
from penstock.ops.status_command import NoAnswer, as_json, as_text, ask, exit_code
from penstock.outside.judgement import judge_capture, judge_shapes
from penstock.outside.postgres_look import PostgresLook
from penstock.outside.shapes_look import look_at_storage
from penstock.settings.services import ShapesSettings, SlotSettings
from penstock.status.model import Status
from penstock.terminal import wants_colour

_CLEAR: Final = "\033[H\033[J"
_FIX: Final = "Fix: start it, give its --url, or say by PGHOST and the like where its Postgres is"


class Told(NamedTuple):
    """A status, and who has told it."""

    status: Status
    source: str


Teller = Callable[[], Coroutine[object, object, Told]]


def from_process(url: str) -> Teller:
    """Asks the process at this ops port; NoAnswer if there is none."""

    async def tell() -> Told:
        return Told(await in_daemon_thread(ask, url), url)

    return tell


def from_anybody(settings: SlotSettings, url: str) -> Teller:
    """Asks the process at this ops port, or else Postgres, for a capture; NoAnswer if neither answers."""
    look = PostgresLook(settings.replication, settings.leader)

    async def tell() -> Told:
        try:
            return await from_process(url)()
        except NoAnswer as silent:
            try:
                postgres, wal_lsn = await look.look(), await look.wal_lsn()
            except PostgresError as error:
                raise NoAnswer(f"{_without_fix(silent)}; and {_without_fix(error)}. {_FIX}") from error
        status = judge_capture(settings.replication, postgres, wal_lsn, time.monotonic())
        slot = settings.replication.slot
        return Told(status, f"slot {slot}, as Postgres tells: nobody answers at {url}")

    return tell


def from_storage(settings: ShapesSettings, file: ShapesFile) -> Teller:
    """Looks at Postgres, the registry and the tables, for shapes. PostgresError, RegistryError."""
    look = PostgresLook(settings.replication, settings.leader)

    async def tell() -> Told:
        postgres = await look.look()
        system_id = None if postgres.server is None else postgres.server.system_id
        storage = await in_daemon_thread(look_at_storage, file, system_id)
        wal_lsn = await look.wal_lsn()
        now = time.monotonic()
        status = judge_shapes(settings.replication, postgres, file, storage, wal_lsn, now)
        source = f"slot {settings.replication.slot}, as Postgres and {file.storage} tell"
        return Told(status, source)

    return tell


def show_status(teller: Teller, *, json: bool, watch_s: float | None) -> int:
    """Print it; returns the exit code. With `watch_s` it prints again after so many seconds, for ever."""
    with asyncio.Runner() as runner:
        if watch_s is None:
            told = runner.run(teller())
            print(_text(told, json=json))
            return exit_code(told.status)
        while True:
            try:
                text = _text(runner.run(teller()), json=json, watch=True)
            except PenstockError as error:
                # It may come back: whoever watches wants to see that.
                print(error, file=sys.stderr, flush=True)
            else:
                print(_CLEAR + text if sys.stdout.isatty() else text, flush=True)
            runner.run(asyncio.sleep(watch_s))


def _text(told: Told, *, json: bool, watch: bool = False) -> str:
    if json:
        return as_json(told.status, indent=not watch)
    text = as_text(told.status, told.source, colour=wants_colour(sys.stdout))
    return f"{time.strftime('%H:%M:%S')}\n{text}\n" if watch else text


def _without_fix(error: PenstockError) -> str:
    return str(error).partition(". Fix:")[0]

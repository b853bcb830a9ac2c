"""`penstock status`: asks a process, or looks from outside; once, or again and again."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Final, NamedTuple, NoReturn, Protocol

import msgspec

from penstock.abandonable import in_daemon_thread
from penstock.errors import PenstockError, PostgresError
from penstock.kinesis.read.marked_stream import StreamAddress
from penstock.model.shape import ShapesFile
from penstock.ops.status_command import NoAnswer, as_json, ask, exit_code
from penstock.outside.judgement import decide_actions, judge_capture, judge_shapes, needed_position
from penstock.outside.postgres_look import PostgresFacts, PostgresLook
from penstock.outside.shapes_look import StorageFacts, look_at_storage
from penstock.outside.source_look import SourceFacts, SourceLook
from penstock.outside.words import in_words
from penstock.settings.services import ShapesSettings, SlotSettings
from penstock.status.model import Status
from penstock.terminal import painted, wants_colour

_CLEAR: Final = "\033[H\033[J"
_GREEN: Final = "32"
_RED: Final = "1;31"
_FIX: Final = "Fix: start it, give its --url, or say by PGHOST and the like where its Postgres is"


class ToldStatus(NamedTuple):
    """A status, and who has told it."""

    status: Status
    source: str


class Teller(Protocol):
    """Somebody who knows."""

    async def tell(self) -> ToldStatus:
        """What there is to say now. A PenstockError if that can't be told."""

    def close(self) -> None:
        """Nothing more will be asked."""


class Process:
    """The process at an ops port; NoAnswer if there is none."""

    def __init__(self, url: str, token: str | None) -> None:
        """`token`: its OPS_TOKEN, if it has one."""
        self._url = url
        self._token = token

    async def tell(self) -> ToldStatus:
        """See Teller."""
        return ToldStatus(await in_daemon_thread(ask, self._url, self._token), self._url)

    def close(self) -> None:
        """See Teller."""


class Anybody:
    """The process at an ops port; if there is none, Postgres, for a capture. NoAnswer if neither answers."""

    def __init__(self, settings: SlotSettings, url: str) -> None:
        self._process = Process(url, settings.ops.secret)
        self._replication = settings.replication
        self._look = PostgresLook(settings.replication, settings.leader)

    async def tell(self) -> ToldStatus:
        """See Teller."""
        try:
            return await self._process.tell()
        except NoAnswer as silent:
            unheard = _without_fix(silent)
            try:
                postgres, wal_lsn = await self._look.look(), await self._look.wal_lsn()
            except PostgresError as error:
                raise NoAnswer(f"{unheard}; and {_without_fix(error)}. {_FIX}") from error
        status = judge_capture(self._replication, postgres, wal_lsn, time.monotonic())
        return ToldStatus(status, f"slot {self._replication.slot}, as Postgres tells: {unheard}")

    def close(self) -> None:
        """See Teller."""
        self._look.close()


class Storage:
    """Postgres, registry, tables, and a stream if there is one, for shapes. PostgresError, RegistryError."""

    def __init__(self, settings: ShapesSettings, file: ShapesFile, stream: StreamAddress | None) -> None:
        self._file = file
        self._replication = settings.replication
        self._stall_s = settings.change_log.stall_s
        self._look = PostgresLook(settings.replication, settings.leader)
        self._source = None if stream is None else SourceLook(stream, self._stall_s)
        self._tells = f"slot {settings.replication.slot}" if stream is None else f"stream {stream.stream}"

    async def tell(self) -> ToldStatus:
        """See Teller."""
        postgres = await self._look.look()
        system_id = None if postgres.server is None else postgres.server.system_id
        storage = await in_daemon_thread(look_at_storage, self._file, system_id)
        wal_lsn = await self._look.wal_lsn()
        source = await self._look_at_source(postgres, storage, wal_lsn)
        status = judge_shapes(
            self._replication,
            postgres,
            self._file,
            storage,
            wal_lsn,
            time.monotonic(),
            source,
            stall_s=self._stall_s,
        )
        return ToldStatus(status, f"{self._tells}, as Postgres and {self._file.storage} tell")

    async def _look_at_source(
        self, postgres: PostgresFacts, storage: StorageFacts, wal_lsn: int
    ) -> SourceFacts | None:
        if self._source is None:
            return None
        slot = self._replication.slot
        actions = decide_actions(slot, postgres, self._file, storage, wal_lsn, from_stream=True)
        needed = needed_position(postgres, storage, actions)
        return await in_daemon_thread(self._source.look, needed)

    def close(self) -> None:
        """See Teller."""
        self._look.close()
        if self._source is not None:
            self._source.close()


def show_status(teller: Teller, *, json: bool, watch_s: float | None) -> int:
    """Print it; returns the exit code. With `watch_s` it prints again after so many seconds, for ever."""
    with asyncio.Runner() as runner:
        try:
            if watch_s is not None:
                runner.run(_watch(teller, json, watch_s))
            told = runner.run(teller.tell())
        finally:
            teller.close()
    print(_text(told, json=json))
    return exit_code(told.status)


async def _watch(teller: Teller, json: bool, every_s: float) -> NoReturn:
    while True:
        try:
            text = _text(await teller.tell(), json=json, watch=True)
        except PenstockError as error:
            # It may come back: whoever watches wants to see that.
            print(error, file=sys.stderr, flush=True)
        else:
            print(_CLEAR + text if sys.stdout.isatty() else text, flush=True)
        await asyncio.sleep(every_s)


def _text(told: ToldStatus, *, json: bool, watch: bool = False) -> str:
    if json:
        return msgspec.json.encode(told.status).decode() if watch else as_json(told.status)
    headline, *rest = in_words(*told).splitlines()
    colour = _GREEN if told.status.ready else _RED
    text = "\n".join([painted(headline, colour, colour=wants_colour(sys.stdout)), *rest])
    return f"{time.strftime('%H:%M:%S')}\n{text}\n" if watch else text


def _without_fix(error: PenstockError) -> str:
    return str(error).partition(". Fix:")[0]

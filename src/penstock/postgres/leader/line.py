"""LeaderLine: the lock, the slot's stream and the sessions beside them, which begin and end together."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple, TypeVar

import psycopg
import structlog
from psycopg import AsyncConnection

from penstock.clock import awake_or_asleep
from penstock.decoding.decoder import Decoder
from penstock.errors import LineLost, LockLost, PenstockError, SlotBusy, SlotMoved
from penstock.model.lsn import format_lsn
from penstock.model.relation import Relation
from penstock.postgres.connection import (
    connect,
    connect_replication,
    connection_parameters,
    hang_up,
    one_line,
)
from penstock.postgres.leader.freshness import Freshness
from penstock.postgres.leader.lock import (
    LockHolder,
    Session,
    lock_holder,
    see_lock,
    slot_hash64,
    try_lock,
)
from penstock.postgres.leader.synchronous import check_synchronous
from penstock.postgres.leader.watchdog import Watchdog
from penstock.postgres.slot.state import (
    SlotState,
    check_server,
    check_slot,
    create_slot,
    open_writers,
    read_slot,
)
from penstock.postgres.stream import protocol
from penstock.postgres.stream.notices import NoticeAlarm
from penstock.postgres.stream.replication import ReplicationStream
from penstock.postgres.timeline import ServerIdentity, identify
from penstock.settings.postgres import LeaderSettings, ReplicationSettings
from penstock.settings.timings import Timings

_BUSY_RETRY_S: Final = 0.2
_LAST_WORD_S: Final = 1.0
_TRIES: Final = 3
"""A lock that was taken, and that nobody holds a moment later, is free: who leads must not be guessed."""
UNREAD_S: Final = 60.0
"""So long a leader may take to begin its stream before a standby finds that odd.

It can't be told sooner: a slot that is created waits for open transactions, and shapes prepare before they
read.
"""

Work = Coroutine[Any, Any, None]
"""A part of a leadership: it runs until it is cancelled or fails."""

_Result = TypeVar("_Result")
_log = structlog.get_logger()


class AnotherLeads(NamedTuple):
    """The lock is taken."""

    holder: LockHolder | None
    slot: str
    """The slot that this process would read."""
    slot_is_read: bool
    """Whether a walsender uses that slot."""
    confirmed_lsn: int = 0
    """How far that slot was confirmed; 0 if that isn't known."""

    @property
    def description(self) -> str:
        """By whom, for people."""
        return "somebody" if self.holder is None else f"{self.holder.description}, pid {self.holder.pid},"

    def trouble(self, *, unread_s: float) -> str | None:
        """Why standing by is no use, and the fix; None if it is. `unread_s`: so long nobody read the slot."""
        reads = None if self.holder is None else self.holder.reads_slot
        if reads not in (None, self.slot):
            return (
                f"the lock is held by {self.description} which reads slot {reads!r}, not {self.slot!r}: two"
                " slots share one lock key. Fix: give each slot a LEADER_LOCK_KEY_OVERRIDE of its own, or"
                " set none"
            )
        if self.holder is not None and not self.holder.is_walsender:
            return (
                f"the lock is held by {self.description} which can't read slot {self.slot!r}: it is no"
                " walsender, so no Penstock. Fix: end that session, or set a LEADER_LOCK_KEY_OVERRIDE of our"
                " own"
            )
        if unread_s > UNREAD_S:
            return (
                f"nobody has read slot {self.slot!r} for {unread_s:.0f} s, though {self.description} holds"
                " its lock. Fix: look at that process, and end it if it is no Penstock"
            )
        return None


class EnsuredSlot(NamedTuple):
    """The slot, and whether it had to be made."""

    state: SlotState
    created: bool


class LeaderLine:
    """What every leader has to do with Postgres. Used once.

    The lock lives on the replication connection, so that lock and slot have one fate; the other sessions
    are closed with it. Call inside `open`, in this order: `take_lock`, `ensure_slot`, `start_stream`,
    `vouch`. Nobody else can move a slot while we read it, but before that somebody without the lock may: so
    `vouch` finds out whether the stream begins where the slot stood when it was first read.
    """

    def __init__(
        self,
        replication: ReplicationSettings,
        leader: LeaderSettings,
        *,
        role: str,
        session: str = "",
        reads_slot: bool = True,
    ) -> None:
        """`session` are further settings of every session, as `-c name=value`.

        `reads_slot`: whether a leader reads the slot, or has only its lock and its name.
        """
        self._replication = replication
        self._reads_slot = reads_slot
        self.timings = Timings.of(leader.timeout_s)
        self.parameters = connection_parameters(
            connect_timeout_s=replication.connect_timeout_s,
            silence_limit_s=self.timings.answer_s,
            role=f"{role} {replication.slot}",
            session=session,
        )
        override = leader.lock_key_override
        self.lock_key = slot_hash64(replication.slot) if override is None else override
        self._sessions: list[AsyncConnection] = []
        self._line: AsyncConnection | None = None
        self._stream: ReplicationStream | None = None
        self.held: Session | None = None
        """The session that has taken the lock, also when it is closed; None if none has."""
        self._first_seen: SlotState | None = None
        """The slot as it was first read: what the leader decides on."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Everything inside ends with all connections closed; an end of a session is a LineLost."""
        try:
            yield
        except psycopg.Error as error:
            raise LineLost(f"the session ended: {one_line(error)}") from error
        finally:
            self.hang_up()

    async def take_lock(self) -> AnotherLeads | None:
        """Connect and compete; None if the lock is ours."""
        line = await self._connect_line()
        holder: LockHolder | None = None
        for _ in range(_TRIES):
            self.held = await try_lock(line, self.lock_key)
            if self.held is not None or (holder := await lock_holder(line, self.lock_key)) is not None:
                break
        if self.held is None:
            slot = await self.read_slot()
            return AnotherLeads(
                holder,
                slot=self._replication.slot,
                slot_is_read=not self._reads_slot or (slot is not None and slot.active_pid is not None),
                confirmed_lsn=0 if slot is None else slot.confirmed_flush_lsn or 0,
            )
        _log.info("lock_acquired", lock_key=self.lock_key, walsender_pid=self.held.pid)
        return None

    async def look(self) -> None:
        """Raise what would keep a leader from the slot, as far as it shows without competing.

        For a line that is not `open`; nothing is taken or made.
        """
        async with self.open():
            line = await self._connect_line()
            if not self._reads_slot:
                return
            await self._check_server()
            slot = await read_slot(line, self._replication.slot)
            if slot is not None:
                check_slot(slot, self._replication.output_plugin)

    async def identify(self) -> ServerIdentity:
        """Which server this is."""
        return await identify(self._replication_connection)

    async def kept_awake(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Do something else before the stream begins: the server would end an idle session."""
        task = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait([task], timeout=self.timings.timeout_s / 4))[0]:
                await self._replication_connection.execute("SELECT 1")
        except BaseException:
            task.cancel()
            raise
        return await task

    async def stay_awake(self) -> None:
        """For a leader without a stream: keep the lock's session busy, and notice its end."""
        try:
            while True:
                await self._replication_connection.execute("SELECT 1")
                await asyncio.sleep(self.timings.timeout_s / 4)
        except psycopg.Error as error:
            raise LineLost(f"the lock's session ended: {one_line(error)}") from error

    async def read_slot(self) -> SlotState | None:
        """The slot as it is, before the stream begins."""
        slot = await read_slot(self._replication_connection, self._replication.slot)
        self._first_seen = self._first_seen or slot
        return slot

    async def ensure_slot(self) -> EnsuredSlot:
        """The slot, made if it is missing; it is not yet checked."""
        line, name = self._replication_connection, self._replication.slot
        await self._check_server()
        slot = await self.read_slot()
        if slot is not None:
            return EnsuredSlot(slot, created=False)
        _log.info("creating_slot", slot=name, waits_for_open_transactions=await open_writers(line))
        slot = await create_slot(line, name, self._replication.output_plugin)
        self._first_seen = self._first_seen or slot
        return EnsuredSlot(slot, created=True)

    async def _connect_line(self) -> AsyncConnection:
        self._line = await connect_replication(self.parameters, wal_sender_timeout_s=self.timings.timeout_s)
        self._sessions.append(self._line)
        return self._line

    async def _check_server(self) -> None:
        await check_server(self._replication_connection, self._replication.output_plugin)
        await check_synchronous(self._replication_connection)

    async def start_stream(
        self, decoder: Decoder, options: Mapping[str, str], *, on_dropped: Callable[[Relation], None]
    ) -> ReplicationStream:
        """Enter COPY BOTH; a walsender of the former leader may take a moment to let go of the slot.

        `on_dropped`: as NoticeAlarm has it.
        """
        alarm = NoticeAlarm(decoder.left_out, on_dropped)
        self._replication_connection.add_notice_handler(alarm)
        try:
            return await self._enter_copy(options)
        except BaseException:
            # It may be tried again with other options, on the same connection.
            self._replication_connection.remove_notice_handler(alarm)
            raise

    async def _enter_copy(self, options: Mapping[str, str]) -> ReplicationStream:
        line = self._replication_connection
        deadline = time.monotonic() + self.timings.timeout_s
        while True:
            try:
                self._stream = await ReplicationStream.start(
                    line,
                    slot=self._replication.slot,
                    plugin=self._replication.output_plugin,
                    options=options,
                )
            except SlotBusy:
                if time.monotonic() >= deadline:
                    raise
                await asyncio.sleep(_BUSY_RETRY_S)
            else:
                return self._stream

    async def vouch(self) -> tuple[Freshness, Watchdog]:
        """See from a session of its own that the lock is ours, and go on seeing it.

        SlotMoved if the stream begins elsewhere than the slot said before.
        """
        assert self.held is not None, "the lock is taken first"
        watcher = await self.connect()
        asked_at = awake_or_asleep()
        await see_lock(watcher, key=self.lock_key, pid=self.held.pid)
        if self._stream is not None:
            await self._see_slot(watcher)
        # From the moment before the question, not from now: this process may have been frozen meanwhile.
        freshness = Freshness(limit_s=self.timings.freshness_s, now=asked_at)
        watchdog = Watchdog(
            watcher,
            lock_key=self.lock_key,
            walsender_pid=self.held.pid,
            freshness=freshness,
            interval_s=self.timings.watch_interval_s,
        )
        return freshness, watchdog

    async def _see_slot(self, watcher: AsyncConnection) -> None:
        """Only we can move it now, and we have confirmed nothing yet."""
        before, now = self._first_seen, await read_slot(watcher, self._replication.slot)
        if before is None or (now is not None and now.start_lsn == before.start_lsn):
            return
        raise SlotMoved(
            f"replication slot {before.name!r} was moved from {format_lsn(before.start_lsn)} to"
            f" {format_lsn(0 if now is None else now.start_lsn)} before our stream began: somebody reads it"
            " without the lock, and changes may be missing. Fix: find who does, and let only one read a slot"
        )

    async def connect(self) -> AsyncConnection:
        """An ordinary session that ends with the leadership."""
        connection = await connect(self.parameters)
        self._sessions.append(connection)
        return connection

    async def run_together(
        self,
        reader: Work,
        others: Mapping[str, Work],
        *,
        until: Work,
        drain: Callable[[asyncio.Task[None]], Awaitable[None]],
        settle: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Run the parts of a leadership. The first failure ends all; the end of `until` drains.

        `drain` gets the reader's task, and the others go on meanwhile. After a failure that isn't the line's
        own, the lock stays ours until `settle` is done.
        """
        try:
            async with asyncio.TaskGroup() as group:

                def start(work: Work, name: str) -> asyncio.Task[None]:
                    return group.create_task(self._hanging_up(work, settle), name=name)

                reading = start(reader, "reader")
                tasks = [start(work, name) for name, work in others.items()]
                await start(until, "end")
                await drain(reading)
                for task in tasks:
                    task.cancel()
        except BaseExceptionGroup as failures:
            raise _most_telling(failures) from failures

    async def _hanging_up(self, work: Work, settle: Callable[[], Awaitable[None]] | None) -> None:
        """Close every connection the moment a part finds that the line is lost.

        The server isn't held up by our walsender, and no part that is cancelled next waits for an answer
        on a dead line. After any other failure the lock is kept until all is settled that another leader
        must not meet.
        """
        try:
            await work
        except LockLost as error:
            words = None if self._stream is None else self._stream.last_words()
            self.hang_up()
            if words is None:
                raise
            raise words from error
        except Exception as error:
            is_lost = any(isinstance(each, LineLost | psycopg.Error) for each in _leaves(error))
            if settle is not None and not is_lost:
                # The line may be lost meanwhile: who finds that hangs up, and cancels this.
                with contextlib.suppress(asyncio.CancelledError):
                    await settle()
            self.hang_up()
            raise

    async def last_word(
        self, send: Callable[[], None], freshness: Freshness, *, within_s: float = _LAST_WORD_S
    ) -> None:
        """Send the last status and see it answered.

        Closing a socket with unread data resets the connection, and the server might then lose a status
        that it has not read. So frames are read and forgotten until one comes that was sent after it.
        """
        assert self._stream is not None, "draining a stream"
        sent_at = awake_or_asleep()
        send()
        try:
            async with asyncio.timeout(min(_LAST_WORD_S, within_s)):
                while True:
                    server_time_us = protocol.server_time_us((await self._stream.read())[-1])
                    if freshness.on_our_clock(protocol.unix_seconds(server_time_us)) >= sent_at:
                        return
        except (TimeoutError, PenstockError):
            _log.info("last_status_unanswered")

    def hang_up(self) -> None:
        """Close every connection at once."""
        if self._stream is not None:
            self._stream.close()
        for connection in self._sessions:
            hang_up(connection)

    @property
    def _replication_connection(self) -> AsyncConnection:
        assert self._line is not None, "the lock is taken first"
        return self._line


def _most_telling(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """Of several failures, one that isn't ours (a bug); else the first: the others follow from it."""
    flat = list(_leaves(failures))
    return next((failure for failure in flat if not isinstance(failure, PenstockError)), flat[0])


def _leaves(failure: BaseException) -> Iterator[BaseException]:
    """The failures in a group, however deep; one that is no group is the only one."""
    if isinstance(failure, BaseExceptionGroup):
        for each in failure.exceptions:
            yield from _leaves(each)
    else:
        yield failure

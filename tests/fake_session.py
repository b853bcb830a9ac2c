"""A session of Postgres that answers from a table, for tests of who asks what and what follows from it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, cast

from psycopg import AsyncConnection

Row = tuple[object, ...] | None
Answer = Row | Exception | Callable[[], Row]


class FakeSession:
    """Answers each query by the first entry whose words stand in it; an entry that is a list is used up."""

    def __init__(
        self, answers: Mapping[str, Answer | list[Answer]], *, pause: Callable[[float], None]
    ) -> None:
        """`pause` is called with the seconds that somebody listens here."""
        self._answers = answers
        self._pause = pause
        self.asked: list[str] = []
        self.listened_s: list[float] = []
        self.closed = False
        self.lock = asyncio.Lock()
        """Held while somebody waits for an answer, which here nobody does."""
        self.notice_handlers: list[object] = []

    @property
    def pgconn(self) -> FakeSession:
        return self

    def finish(self) -> None:
        self.closed = True

    async def execute(self, query: str, parameters: object = None) -> FakeCursor:
        words = next(words for words in self._answers if words in query)
        self.asked.append(words)
        answer = self._answers[words]
        if isinstance(answer, list):
            answer = answer.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return FakeCursor(answer() if callable(answer) else answer)

    async def notifies(self, *, timeout: float) -> AsyncIterator[Any]:
        self.listened_s.append(timeout)
        self._pause(timeout)
        return
        yield

    def add_notice_handler(self, handler: object) -> None:
        self.notice_handlers.append(handler)

    def remove_notice_handler(self, handler: object) -> None:
        self.notice_handlers.remove(handler)

    def as_connection(self) -> AsyncConnection:
        """For those who take a connection."""
        return cast(AsyncConnection, self)


class FakeCursor:
    """One row, or none."""

    def __init__(self, row: Row) -> None:
        self._row = row

    async def fetchone(self) -> Row:
        return self._row

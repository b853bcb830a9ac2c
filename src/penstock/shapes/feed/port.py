"""Feed: where the changes of shapes come from. A port: the leadership knows no source."""

from __future__ import annotations

from typing import Protocol


class Feed(Protocol):
    """Brings changes in, and tells their source how far the tables are. One a leadership."""

    @property
    def received_lsn(self) -> int:
        """The highest position heard of."""

    @property
    def confirmed_lsn(self) -> int:
        """The highest position that the source was told to be in the tables."""

    @property
    def is_paused(self) -> bool:
        """Whether it waits for room."""

    async def read(self) -> None:
        """Bring changes in until cancelled, or until the source is lost."""

    async def report(self) -> None:
        """Tell the source again and again, until cancelled."""

    def tell_if_moved(self) -> None:
        """Tell the source if there is news."""

    def last_word(self) -> None:
        """Tell the source now, and ask for an answer."""

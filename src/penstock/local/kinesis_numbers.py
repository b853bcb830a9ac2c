"""Sequence numbers of the emulator's shards: as in Kinesis, a stream knows those of another from its own."""

from __future__ import annotations

from itertools import count
from typing import Any, Final
from weakref import WeakKeyDictionary

_LENGTHS: Final = 40
"""Kinesis' own numbers have up to 56 digits."""
_SHORTEST: Final = 5


class ShardNumbers:
    """The numbers of one shard's records: without gaps, from a beginning that is the shard's own.

    Soon after it they get longer by a digit: whoever compares them as text finds out.
    """

    def __init__(self, nth: int) -> None:
        self._before: int = 10 ** (_SHORTEST + nth % _LENGTHS) - 6
        self.last: int = self._before
        """That of the newest record; also if it has expired."""

    def knows(self, number: int) -> bool:
        """Whether a record here has or had this number."""
        return self._before < number <= self.last


_made: Final = count()
_numbers: Final[WeakKeyDictionary[Any, ShardNumbers]] = WeakKeyDictionary()


def numbers_of(shard: Any) -> ShardNumbers:
    """The numbers of one of moto's shards."""
    found = _numbers.get(shard)
    if found is None:
        found = _numbers[shard] = ShardNumbers(next(_made))
    return found

"""watch: a look at a stream, carried out. Blocks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Final

from penstock.kinesis.read.look import Look, Reached, Task
from penstock.kinesis.read.reach import Limit, Pages, reach
from penstock.kinesis.read.stream_offset import StreamOffset

_SHARDS_AT_ONCE: Final = 16


def watch(client: Pages, look: Look, limit: Limit, *, to_tip: bool = False) -> StreamOffset:
    """Ask Kinesis what a look wants to know; where the batch ends."""
    share = limit.share(look.unfinished)

    def ask(task: Task) -> Reached:
        return reach(client, task, share, to_tip=to_tip)

    with ThreadPoolExecutor(_SHARDS_AT_ONCE) as threads:
        while tasks := look.ready():
            for task, reached in zip(tasks, threads.map(ask, tasks), strict=True):
                look.take(task, reached)
    return look.end()

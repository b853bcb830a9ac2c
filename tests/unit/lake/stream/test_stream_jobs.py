"""Who may say where a shape in a stream is: a leader, while its line is fresh, and nobody else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.kinesis.aws.outcome import MarkResult, Placed, Unsent
from penstock.kinesis.marked.manifest import ACTION, Manifest, encode, partition_key
from penstock.lake.errors import StorageFailed
from penstock.lake.stream import stream_jobs as module
from penstock.lake.stream.keeping import Keeping
from penstock.lake.stream.place import StreamPlace
from penstock.lake.stream.shape_marks import REST_S
from penstock.lake.stream.stream_jobs import StreamJobs, StreamStorage
from penstock.model.relation import Relation
from penstock.model.shape import Shape
from penstock.model.stream_position import History, StreamPosition
from tests.stream_in_memory import StreamInMemory

ORDERS = Shape("orders", Relation("public", "orders"))
KEY = partition_key("orders")
LONG_AFTER = 1e9
NOTHING: Any = None


class Memory(StreamInMemory):
    """Takes manifests, and counts them."""

    sent = 0

    def put_mark(self, data: bytes, key: str, after: str | None, may_send: Callable[[], bool]) -> MarkResult:
        if not may_send():
            return Unsent()
        self.sent += 1
        shard = self.open_shard_of(key)
        return Placed(str(self.put(shard, data, key)), shard)

    def probe(self) -> None:
        """It is there."""

    def close(self) -> None:
        """Nothing to close."""


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    memory = Memory()
    at = str(StreamPosition(1, 100))
    manifest = Manifest(ACTION, "7", "orders", "by", at, at, 0, 0, {}, {})
    memory.put(memory.open_shard_of(KEY), encode(manifest), KEY)
    monkeypatch.setattr(module, "shape_session", lambda _: None)
    monkeypatch.setattr(module, "working", lambda *_: threading.Lock())
    monkeypatch.setattr(module, "open_client", lambda *_: memory)
    monkeypatch.setattr(StreamPlace, "open", lambda _: memory)
    return memory


def jobs_of(may_write: Callable[[], bool] | None) -> StreamJobs:
    """Jobs that know where the shape is; those of a leader, if somebody says whether it is one."""
    storage = StreamStorage(StreamPlace("s", "eu-west-1"), "s", "7", History(1, {}), "wal2json", Keeping())
    jobs = StreamJobs(NOTHING, [ORDERS], storage)
    if may_write is not None:
        jobs.lead(may_write)
    assert jobs.state(ORDERS).tx_offset == 99
    return jobs


def resting() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "penstock-rest"]


def test_a_leader_repeats_where_a_shape_at_rest_is(memory: Memory) -> None:
    jobs = jobs_of(lambda: True)
    jobs.say_again(LONG_AFTER)
    jobs.say_again(LONG_AFTER + REST_S - 1)
    assert memory.sent == 1
    jobs.say_again(LONG_AFTER + REST_S)
    assert memory.sent == 2
    jobs.end()


@pytest.mark.parametrize("may_write", [None, lambda: False])
def test_who_does_not_lead_says_nothing(memory: Memory, may_write: Callable[[], bool] | None) -> None:
    jobs = jobs_of(may_write)
    jobs.say_again(LONG_AFTER)
    with pytest.raises(StorageFailed, match="a manifest of orders was not sent"):
        jobs.snapshot(ORDERS, SimpleNamespace(leaves=[]), (), "", 199)  # type: ignore[arg-type]
    assert memory.sent == 0
    assert jobs.state(ORDERS).tx_offset == 99
    jobs.end()


def test_after_its_end_it_says_nothing_and_its_thread_ends(memory: Memory) -> None:
    before = resting()
    jobs = jobs_of(lambda: True)
    (thread,) = [each for each in resting() if each not in before]
    jobs.end()
    jobs.say_again(LONG_AFTER)
    assert memory.sent == 0
    thread.join(10)
    assert not thread.is_alive(), "though the jobs are still there"


def test_who_only_looks_has_no_thread(memory: Memory) -> None:
    before = resting()
    assert jobs_of(None)
    assert resting() == before

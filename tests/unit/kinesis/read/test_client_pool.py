"""Clients are lent to one task after the other, for as long as all is well with them."""

from __future__ import annotations

import pytest

from penstock.kinesis.read import client_pool
from penstock.kinesis.read.client import StreamClient
from penstock.kinesis.read.client_pool import ClientPool

PLACE = ("s", "eu-west-1", "http://127.0.0.1:9")


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")


def test_one_task_after_the_other_has_the_same_client() -> None:
    pool = ClientPool()
    with pool.lend(*PLACE) as first, pool.lend(*PLACE) as beside:
        assert beside is not first
    with pool.lend(*PLACE) as again, pool.lend(*PLACE) as second, pool.lend(*PLACE) as third:
        assert {again, second} == {first, beside}
        assert third not in (first, beside)
    with pool.lend("other", *PLACE[1:]) as other:
        assert other.stream == "other"


def test_a_client_with_which_something_went_wrong_is_not_lent_again() -> None:
    pool = ClientPool()
    with pytest.raises(ValueError, match="wrong"), pool.lend(*PLACE) as first:
        raise ValueError("wrong")
    with pool.lend(*PLACE) as second:
        assert second is not first


def test_an_old_one_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = ClientPool()
    with pool.lend(*PLACE) as first:
        pass
    monkeypatch.setattr(client_pool, "_RENEWED_AFTER_S", 0.0)
    with pool.lend(*PLACE) as second:
        assert second is not first


def test_an_old_one_that_nobody_takes_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    monkeypatch.setattr(StreamClient, "close", lambda self: closed.append(self.stream))
    pool = ClientPool()
    with pool.lend("other", *PLACE[1:]):
        pass
    with pool.lend(*PLACE):
        monkeypatch.setattr(client_pool, "_RENEWED_AFTER_S", 0.0)
        assert closed == []
    assert "other" in closed

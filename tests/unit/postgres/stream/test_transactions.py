from __future__ import annotations

import pytest

from penstock.errors import ProtocolViolation
from penstock.postgres.stream.walk import TransactionBuilder


def test_a_new_builder_may_confirm_what_is_confirmed() -> None:
    builder = TransactionBuilder(confirmed_lsn=50)

    assert (builder.safe_lsn, builder.in_transaction) == (50, False)


def test_every_change_is_placed_as_it_arrives() -> None:
    builder = TransactionBuilder(confirmed_lsn=0)
    builder.begin(100, 110)

    assert [(builder.commit_lsn, builder.place()) for _ in range(4)] == [
        (100, 0),
        (100, 2),
        (100, 4),
        (100, 6),
    ]


def test_places_start_afresh_with_each_transaction() -> None:
    builder = TransactionBuilder(confirmed_lsn=0)
    builder.begin(100, 110)
    builder.place()
    builder.commit(100)

    builder.begin(200, 210)

    assert (builder.commit_lsn, builder.place()) == (200, 0)


def test_inside_a_transaction_only_what_came_before_it_may_be_confirmed() -> None:
    builder = TransactionBuilder(confirmed_lsn=50)
    builder.begin(100, 110)
    builder.place()
    assert (builder.safe_lsn, builder.in_transaction) == (50, True)

    assert builder.commit(100) == 110
    assert (builder.safe_lsn, builder.in_transaction) == (110, False)


def test_an_empty_transaction_moves_it_too() -> None:
    builder = TransactionBuilder(confirmed_lsn=0)
    builder.begin(100, 110)

    assert builder.commit(100) == 110


@pytest.mark.parametrize(
    ("wal_end", "moved", "safe"), [(60, 60, 60), (50, None, 50), (40, None, 50)], ids=["on", "same", "back"]
)
def test_a_keepalive_between_transactions_moves_forward_only(
    wal_end: int, moved: int | None, safe: int
) -> None:
    builder = TransactionBuilder(confirmed_lsn=50)

    assert builder.keepalive(wal_end) == moved
    assert builder.safe_lsn == safe


@pytest.mark.parametrize("wal_end", [100, 110, 10_000])
def test_a_keepalive_inside_a_transaction_moves_nothing(wal_end: int) -> None:
    builder = TransactionBuilder(confirmed_lsn=50)
    builder.begin(100, 110)

    assert builder.keepalive(wal_end) is None
    assert builder.safe_lsn == 50
    assert builder.commit(100) == 110


def test_a_transaction_that_ends_below_a_keepalive_does_not_move_back() -> None:
    builder = TransactionBuilder(confirmed_lsn=0)
    builder.keepalive(500)
    builder.begin(100, 110)

    assert builder.commit(100) == 500
    assert builder.safe_lsn == 500


def test_a_begin_inside_a_transaction_is_a_violation() -> None:
    builder = TransactionBuilder(confirmed_lsn=0)
    builder.begin(0x1_00000064, 0x1_0000006E)

    with pytest.raises(ProtocolViolation, match="inside the one that commits at 1/64"):
        builder.begin(0x1_000000C8, 0x1_000000D2)


@pytest.mark.parametrize("end_lsn", [100, 99])
def test_a_transaction_ends_after_its_commit(end_lsn: int) -> None:
    with pytest.raises(ProtocolViolation, match="ends before"):
        TransactionBuilder(confirmed_lsn=0).begin(100, end_lsn)


def test_a_change_needs_a_transaction() -> None:
    builder = TransactionBuilder(confirmed_lsn=0)

    with pytest.raises(ProtocolViolation, match="outside a transaction"):
        builder.place()
    with pytest.raises(ProtocolViolation, match="outside a transaction"):
        _ = builder.commit_lsn


def test_a_commit_needs_its_own_transaction() -> None:
    builder = TransactionBuilder(confirmed_lsn=7)
    with pytest.raises(ProtocolViolation, match=r"commit 0/64 does not fit the open transaction \(none\)"):
        builder.commit(100)

    builder.begin(100, 110)
    with pytest.raises(ProtocolViolation, match=r"commit 0/C8 does not fit the open transaction \(0/64\)"):
        builder.commit(200)
    assert (builder.safe_lsn, builder.in_transaction) == (7, True)


def test_a_transaction_commits_once() -> None:
    builder = TransactionBuilder(confirmed_lsn=0)
    builder.begin(100, 110)
    builder.commit(100)

    with pytest.raises(ProtocolViolation):
        builder.commit(100)

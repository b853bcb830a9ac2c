from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from penstock.capture import app  # noqa: F401 - with it, every error class is defined
from penstock.decoding.decoder import Unreadable
from penstock.errors import PenstockError
from penstock.kinesis.write.partition_key import KeyedRelation, UnknownRelation
from penstock.model.relation import Relation
from penstock.postgres.leader.lock import slot_hash64


def tree(kind: type[PenstockError]) -> Iterator[type[PenstockError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from tree(child)


@pytest.mark.parametrize(
    ("slot", "key"),
    [
        ("etl_slot_wal2json", -1_649_906_244_990_588_025),
        ("penstock_shapes", 8_223_689_539_002_028_335),
        ("a", -3_848_465_438_864_589_366),
        ("x" * 63, 8_440_321_051_778_513_126),
    ],
)
def test_lock_keys_never_change(slot: str, key: int) -> None:
    """Two versions of Penstock on one slot must compete for the same lock."""
    assert slot_hash64(slot) == key


def test_lock_keys_fit_a_bigint_and_use_both_signs() -> None:
    keys = [slot_hash64(f"slot_{number}") for number in range(200)]

    assert len(set(keys)) == 200
    assert all(-(2**63) <= key < 2**63 for key in keys)
    assert min(keys) < 0 < max(keys)


@pytest.mark.parametrize("kind", list(tree(PenstockError)), ids=lambda kind: kind.__name__)
def test_errors_travel_between_processes(kind: type[PenstockError]) -> None:
    copy = pickle.loads(pickle.dumps(kind("what happened. Fix: this")))

    assert (type(copy), str(copy)) == (kind, "what happened. Fix: this")


def test_errors_that_never_leave_their_module_are_picklable_too() -> None:
    relation = KeyedRelation(Relation("public", "t"), b"[]")

    assert pickle.loads(pickle.dumps(UnknownRelation(relation))).relation == relation
    assert str(pickle.loads(pickle.dumps(Unreadable("why")))) == "why"

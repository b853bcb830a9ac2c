"""When a known key has to be looked up again, and when it must not be."""

from __future__ import annotations

import msgspec
import pytest

from penstock.decoding.decoder import Value
from penstock.kinesis.write.partition_key import KeyColumns

PK = b'[{"name":"id"}]'


def values(names: list[str]) -> list[Value]:
    return [Value(name, msgspec.Raw(b"1")) for name in names]


def known(names: list[str], *, identity: tuple[str, ...] = ()) -> KeyColumns:
    return KeyColumns(PK, identity, "public.t/", tuple(names), ("id",))


@pytest.mark.parametrize(
    ("names", "identity"),
    [
        pytest.param(["id"], ["id"], id="the identity is the key"),
        pytest.param(["b", "a"], ["a", "b"], id="in any order"),
        pytest.param(["id"], ["id", "v", "w"], id="FULL holds the key"),
    ],
)
def test_an_identity_with_the_key_fits(names: list[str], identity: list[str]) -> None:
    assert known(names).fits(values(identity))


@pytest.mark.parametrize(
    ("names", "identity"),
    [
        pytest.param(["id"], ["code"], id="another index"),
        pytest.param(["id", "part"], ["id"], id="a smaller one"),
        pytest.param([], ["code"], id="there was no key before"),
    ],
)
def test_an_identity_without_the_key_is_asked_for_once(names: list[str], identity: list[str]) -> None:
    assert not known(names).fits(values(identity))
    assert known(names, identity=tuple(identity)).fits(values(identity)), "the catalog knew no better"
    assert not known(names, identity=tuple(identity)).fits(values([*identity, "more"]))

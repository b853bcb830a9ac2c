"""Which columns are absent together."""

from __future__ import annotations

import pytest

from penstock.lake.fold.survey import together_in


@pytest.mark.parametrize(
    ("absences", "groups"),
    [
        ([], ()),
        ([""], ()),
        (["b"], ()),
        (["", "b"], (("b",),)),
        (["", "abc"], (("a", "b", "c"),)),
        (["b", "abc"], (("a", "c"),)),
        (["", "ab", "bc"], (("a",), ("b",), ("c",))),
        (["xab", "xc"], (("a", "b"), ("c",))),
    ],
)
def test_columns_come_and_lack_in_groups(absences: list[str], groups: tuple[tuple[str, ...], ...]) -> None:
    assert together_in([frozenset(each) for each in absences]) == groups

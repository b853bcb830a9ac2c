"""Of which tables records tell, by the patterns of the settings."""

from __future__ import annotations

import pytest

from penstock.decoding.decoder import RecordContent
from penstock.decoding.table_patterns import is_told
from penstock.model.relation import Relation


@pytest.mark.parametrize(
    ("added", "filtered", "told"),
    [
        (None, None, True),
        ("public.a", None, True),
        ("public.b", None, False),
        ("nonsense", None, False),
        ("*.a,public.b", None, True),
        (None, "public.*", False),
        ("public.*", "public.a", False),
        ("public.*", "other.a", True),
    ],
)
def test_a_table_is_told_if_it_is_added_and_not_filtered(
    added: str | None, filtered: str | None, told: bool
) -> None:
    content = RecordContent(add_tables=added, filter_tables=filtered)
    assert is_told(Relation("public", "a"), content) is told

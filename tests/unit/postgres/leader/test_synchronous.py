"""Which walsenders `synchronous_standby_names` counts."""

from __future__ import annotations

import pytest

from penstock.postgres.leader.synchronous import names_standby, synchronous_standby

OURS = "penstock capture etl_slot_wal2json"


@pytest.mark.parametrize(
    ("setting", "counts"),
    [
        ("", False),
        ("*", True),
        ("standby1", False),
        ("standby1, *", True),
        ("1 (*)", True),
        ("2 (standby1, standby2)", False),
        ("FIRST 1 (*)", True),
        ("any 2 (s1, s2, *)", True),
        ("ANY 1 (s1, s2)", False),
        ('"*"', True),
        (f'"{OURS}"', True),
        (f'ANY 1 ("{OURS.upper()}", s2)', True),
        ("any, first", False),
        ('"a""b"', False),
    ],
)
def test_whose_confirmation_commits_wait_for(setting: str, counts: bool) -> None:
    assert names_standby(setting, OURS) is counts


def test_the_error_names_the_setting_and_the_fix() -> None:
    assert "synchronous_standby_names is '*'" in str(synchronous_standby("*", OURS))
    assert "Fix: name the standbys" in str(synchronous_standby("*", OURS))

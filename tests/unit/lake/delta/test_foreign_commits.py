"""Which commits of others may have changed rows."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.lake.delta.foreign_commits import harm, is_ours, read_version


def commit(operation: str, *actions: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"commitInfo": {"operation": operation, "engineInfo": "X", "readVersion": 3}}, *actions]


@pytest.mark.parametrize(
    ("actions", "said"),
    [
        (commit("OPTIMIZE", {"add": {"dataChange": False}}, {"remove": {"dataChange": False}}), None),
        (commit("SET TBLPROPERTIES", {"metaData": {}}, {"protocol": {}}), None),
        (commit("VACUUM END"), None),
        (commit("CHANGE COLUMN", {"metaData": {}}), None),
        (commit("CHANGE COLUMNS", {"metaData": {}}), None),
        (commit("OPTIMIZE", {"add": {"dataChange": True}}), "OPTIMIZE by X changed rows"),
        (commit("RESTORE", {"remove": {}}), "RESTORE by X changed rows"),
        (
            commit("DELETE", {"cdc": {"dataChange": False}}, {"remove": {"dataChange": True}}),
            "DELETE by X changed rows",
        ),
        (commit("RENAME COLUMN", {"metaData": {}}), "RENAME COLUMN by X may have changed columns"),
        ([{"add": {"dataChange": True}}], "an unnamed operation changed rows"),
        ([], None),
    ],
)
def test_actions_are_the_proof(actions: list[dict[str, Any]], said: str | None) -> None:
    assert harm(actions) == said


@pytest.mark.parametrize(
    ("action", "ours"),
    [
        ({"txn": {"appId": "penstock:1:a:1"}}, True),
        ({"txn": {"appId": "penstock:1:ab:1"}}, False),
        ({"commitInfo": {"userMetadata": "penstock:1:a:7"}}, True),
        ({"commitInfo": {"userMetadata": None}}, False),
        ({"add": {}}, False),
    ],
)
def test_ours_carry_our_name(action: dict[str, Any], ours: bool) -> None:
    assert is_ours([{}, action], "penstock:1:a:") is ours


def test_a_commit_says_what_it_was_made_from() -> None:
    assert read_version(commit("MERGE")) == 3
    assert read_version([{"txn": {}}]) is None

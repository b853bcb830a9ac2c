"""Commits in our tables that aren't ours: which of them may have changed rows.

Others may compact a table, or set its properties; what they can't do is change its rows: we would flush over
that, and the table would differ from Postgres without a word. Our commits carry our transaction, or our name
in `userMetadata`. RESTORE leaves the transaction as it is and adds the older files: it is a commit without
one. Of any other commit the actions are the proof: no file in it may carry changed data. What the columns
are is told by no action alone, so a commit with metadata has to be one of the operations that leave them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

_FILES: Final = ("add", "remove", "cdc")
_LEAVE_COLUMNS: Final = frozenset(
    {
        "ADD CONSTRAINT",
        "ADD FEATURE",
        # Wider types, comments and order: names and values stay.
        "CHANGE COLUMN",
        "CHANGE COLUMNS",
        "DROP CONSTRAINT",
        "DROP FEATURE",
        "OPTIMIZE",
        "SET TBLPROPERTIES",
        "UNSET TBLPROPERTIES",
        "UPGRADE PROTOCOL",
        "VACUUM END",
        "VACUUM START",
    }
)


def is_ours(actions: Iterable[Mapping[str, Any]], prefix: str) -> bool:
    """Whether a writer whose name starts like this made the commit."""
    return any(
        action.get("txn", {}).get("appId", "").startswith(prefix)
        or (action.get("commitInfo", {}).get("userMetadata") or "").startswith(prefix)
        for action in actions
    )


def read_version(actions: Iterable[Mapping[str, Any]]) -> int | None:
    """The version that a commit was made from, if it says so."""
    version = _info(actions).get("readVersion")
    return None if version is None else int(version)


def deleted_rows(actions: Iterable[Mapping[str, Any]]) -> int:
    """How many rows a DELETE says that it deleted."""
    return int(_info(actions).get("operationMetrics", {}).get("numDeletedRows", 0))


def harm(actions: Iterable[Mapping[str, Any]]) -> str | None:
    """What a commit of others may have done to the rows, in words; None if nothing."""
    actions = list(actions)
    info = _info(actions)
    operation = info.get("operation", "an unnamed operation")
    who = f" by {info['engineInfo']}" if "engineInfo" in info else ""
    for action in actions:
        if any(action[kind].get("dataChange", True) for kind in _FILES if kind in action):
            return f"{operation}{who} changed rows"
        if "metaData" in action and operation not in _LEAVE_COLUMNS:
            return f"{operation}{who} may have changed columns"
    return None


def _info(actions: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    return next((action["commitInfo"] for action in actions if "commitInfo" in action), {})

"""What others do to our Delta tables: a service may build on some of it, and has to copy the rest again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

Deed = Literal["RESTORE", "DELETE", "UPDATE", "OPTIMIZE", "SET TBLPROPERTIES"]
DEEDS: Final[tuple[Deed, ...]] = get_args(Deed)

_ATTEMPTS: Final = 20


@dataclass(frozen=True, slots=True)
class Stranger:
    """Somebody with access to the lake, and one thing to do there."""

    deed: Deed
    shape: int
    """To which table, counted over those that there are, round and round."""

    def act(self, path: Path, column: str | None) -> bool:
        """Do it; returns whether rows may be others than before. `column` may be null, and is updated."""
        for _ in range(_ATTEMPTS):
            table = DeltaTable(str(path))
            before = table.version()
            try:
                self._commit(table, column)
            except CommitFailedError:
                continue  # the service was faster
            return any(_changes_rows(path, version) for version in range(before + 1, table.version() + 1))
        raise AssertionError(f"the service commits to {path} all the time")

    def _commit(self, table: DeltaTable, column: str | None) -> None:
        match self.deed:
            case "RESTORE":
                if table.version():
                    table.restore(table.version() // 2)
            case "UPDATE" if column is not None:
                table.update(updates={column: "NULL"})
            case "UPDATE" | "DELETE":
                table.delete()
            case "OPTIMIZE":
                table.optimize.compact()
            case "SET TBLPROPERTIES":
                table.alter.set_table_properties({"theirs": "x"}, raise_if_not_exists=False)


def _changes_rows(path: Path, version: int) -> bool:
    commit = (path / "_delta_log" / f"{version:020}.json").read_text()
    actions = [json.loads(line) for line in commit.splitlines()]
    return any(action.get(kind, {}).get("dataChange") for action in actions for kind in ("add", "remove"))


class Disturbances:
    """What strangers did, and whether the service made of it what it has to.

    Events are all that was logged, of all lives, in their order.
    """

    def __init__(self) -> None:
        self._quiet: dict[str, int] = {}
        self._harmed: dict[str, int] = {}

    def note(self, shape: str, *, changed_rows: bool, events: int) -> None:
        """A stranger was at a shape's table when there were so many events."""
        (self._harmed if changed_rows else self._quiet)[shape] = events

    def settle(self, events: Sequence[Mapping[str, Any]]) -> None:
        """The service has caught up, and this is what it has logged."""
        for shape, since in self._harmed.items():
            assert ("snapshot_needed", shape) in _said(events[since:]), (
                f"{shape}: nobody noticed that others had changed rows"
            )
        for shape, since in self._quiet.items():
            assert shape in self._harmed or ("foreign_commit", shape) not in _said(events[since:]), (
                f"{shape}: others had changed no row"
            )
        self._quiet.clear()
        self._harmed.clear()


def _said(events: Sequence[Mapping[str, Any]]) -> set[tuple[str, str | None]]:
    return {(event["event"], event.get("shape")) for event in events}

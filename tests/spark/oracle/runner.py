"""RoundRunner: plays a round against a real Postgres and a real service, and compares every shape."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.local.postgres import PrivatePostgres
from tests.servers.shapes_site import ShapesProcess, ShapesSite
from tests.spark.oracle.compare import Difference, compare
from tests.spark.oracle.life import Life, Round
from tests.spark.oracle.player import Player
from tests.spark.oracle.strangers import Disturbances
from tests.spark.oracle.tables import Table
from tests.spark.oracle.tricks import is_trick, tricks_in
from tests.spark.oracle.world import Reload, ShapeOf, World, reload_of

Events = Sequence[Mapping[str, Any]]
Once = Callable[[ShapesSite], Events]

_PATIENCE_S = 240.0
# How long a job takes says nothing here: the machine may be busy with others.
_STALL_S = "600"
_PARTS_OF_A_LIFE = 3


class RoundRunner:
    """Runs one round in a database and a directory of its own.

    Each life has three parts of the writers' statements: while the service starts, while it makes its
    snapshots or catches up, and when it has caught up. Transactions that are open at the end of a life go on
    in the next. None is open while somebody waits for the service: a snapshot waits for them.

    One life is disturbed when it has caught up: strangers commit to its tables, and the shapes file is
    another one, which it reads at a SIGHUP while the writers go on. Strangers also come between two lives.
    """

    def __init__(
        self,
        postgres: PrivatePostgres,
        database: str,
        directory: Path,
        round_: Round,
        once: Once | None = None,
    ) -> None:
        """`once`: runs the last life; gives what was logged."""
        self._postgres = postgres
        self._site = ShapesSite(postgres, database, directory)
        self._round = round_
        self._once = once or _once
        self._shapes = _named(round_.worlds, lambda world: world.shapes)
        self._gone: dict[str, int] = {}
        self._past: list[Mapping[str, Any]] = []
        self._disturbances = Disturbances()
        conninfo = postgres.conninfo(database)
        self._players = [Player(conninfo, _schema(index), world) for index, world in enumerate(round_.worlds)]
        self._began = time.monotonic()
        self.compared = 0
        """Comparisons made."""
        self.history: list[str] = []
        """What happened to the service, for people."""

    @property
    def committed(self) -> int:
        """Transactions committed by the writers."""
        return sum(player.committed for player in self._players)

    @property
    def tricks(self) -> set[str]:
        """The kinds of tricks in what they committed."""
        return tricks_in([statement for player in self._players for statement in player.done])

    def run(self) -> list[Difference]:
        """Play all of it; returns the differences of the first comparison that finds some."""
        self._create()
        try:
            for life in self._round.lives:
                found = self._live(life)
                if found:
                    return found
            for player in self._players:
                player.play_all()
        finally:
            for player in self._players:
                player.close()
        self._note("the last life: --once")
        self._site.wait_until_nobody_leads()
        self._past += self._once(self._site)
        self._note("compared for the last time")
        self._settle(self._past)
        return self.differences()

    def differences(self) -> list[Difference]:
        """Compare every shape; nobody writes meanwhile, and the service has everything."""
        found = []
        for name, shape in self._shapes.items():
            columns = [column.name for column in shape.stored(self._table(name))]
            difference = compare(name, self._site.table(name), columns, self._site.sql(self._query(name)))
            self.compared += 1
            if difference is not None:
                found.append(difference)
        return found

    def _create(self) -> None:
        for index, world in enumerate(self._round.worlds):
            statements = [f"CREATE SCHEMA {_schema(index)}", f"SET search_path = {_schema(index)}"]
            for table in world.tables:
                statements += table.create()
            self._site.sql("; ".join(statements))
        self._write_file()

    def _write_file(self) -> None:
        self._site.write_file(
            *(
                shape.to_toml(name, _schema(parse_shape_name(name)[0]), self._table(name))
                for name, shape in self._shapes.items()
            )
        )

    def _table(self, name: str) -> Table:
        return self._round.worlds[parse_shape_name(name)[0]].tables[self._shapes[name].table]

    def _query(self, name: str) -> str:
        return self._shapes[name].query(_schema(parse_shape_name(name)[0]), self._table(name))

    def _live(self, life: Life) -> list[Difference]:
        over = {"PENSTOCK_FAULT_POINT": life.fault_point} if life.fault_point else {}
        self._note(f"a life begins: {life}")
        with self._service(over) as service:
            self._play()
            self._finish_open()
            self._wait_for_streaming(service)
            self._play()
            if life.server is not None:
                self._note(f"Postgres: {life.server}")
                self._postgres.stop("fast" if life.server == "restart" else "immediate")
                self._postgres.start()
            self._finish_open()
            found = self._caught_up(service)
            if life.disturbed and not found:
                found = self._disturb(life, service)
            self._play()
            assert service.running or life.ending == "fault", "penstock has ended"
            if life.ending == "fault":
                self._finish_open()
                self._site.wait_until(lambda: self._is_over(service), _PATIENCE_S)
            elif life.ending == "stop":
                service.stop()
                assert service.wait(_PATIENCE_S) == 0, "a service that is stopped ends with 0"
        if not life.disturbed:
            self._let_in(life, list(self._shapes))
        return found

    def _disturb(self, life: Life, service: ShapesProcess) -> list[Difference]:
        """Strangers come, and the file is another one; writers go on meanwhile."""
        before, self._shapes = self._shapes, _named(self._round.worlds, lambda world: world.reloaded)
        reload = reload_of(before, self._shapes)
        as_before = self._shapes.keys() - {*reload.added, *reload.edited}
        # A table that nothing comes for is looked at once a minute: that would take too long here.
        harmed = self._let_in(
            life, [name for name in sorted(as_before) if self._site.sql(self._query(name))], service
        )
        for name in harmed:
            key = self._table(name).key[0]
            schema = _schema(parse_shape_name(name)[0])
            self._site.sql(f'UPDATE {schema}.{self._table(name).name} SET "{key}" = "{key}"')
        self._reload(reload, service)
        self._play()
        self._finish_open()
        found = self._caught_up(service)
        self._gone = {name: self._site.version(name) for name in reload.removed}
        return found

    def _let_in(self, life: Life, names: list[str], service: ShapesProcess | None = None) -> list[str]:
        """Strangers do what they do to these shapes' tables; returns those where it may harm."""
        harmed = []
        names = [name for name in names if (self._site.table(name) / "_delta_log").exists()]
        for stranger in life.strangers if names else ():
            name = names[stranger.shape % len(names)]
            columns = self._shapes[name].stored(self._table(name))[self._table(name).key_length :]
            column = next((each.name for each in columns if not each.not_null), None)
            events = len(self._events(service))
            changed = stranger.act(self._site.table(name), column)
            self._note(f"others: {stranger.deed} on {name}{'' if changed else ', which changes no row'}")
            self._disturbances.note(name, changed_rows=changed, events=events)
            if changed:
                harmed.append(name)
        return harmed

    def _reload(self, reload: Reload, service: ShapesProcess) -> None:
        """Write the file as it is now, and wait until the service goes by it."""
        leaderships = len(service.events("streaming"))
        self._write_file()
        os.kill(service.pid, signal.SIGHUP)
        said = service.wait_for_log("reloaded", _PATIENCE_S)
        assert Reload(*(sorted(said[what]) for what in Reload._fields)) == reload
        self._note(str(reload))
        if any(reload):
            service.wait_for_log("streaming", _PATIENCE_S, count=leaderships + 1)
        for name in (*reload.added, *reload.edited):
            service.wait_for_reason(name, "", _PATIENCE_S)

    def _events(self, service: ShapesProcess | None) -> Events:
        """All that was logged in all lives."""
        return [*self._past, *(service.events() if service is not None else ())]

    @contextmanager
    def _service(self, over: dict[str, str]) -> Iterator[ShapesProcess]:
        with self._site.shapes(STALL_S=_STALL_S, **over) as service:
            yield service
            service.kill9()
            self._past += service.events()

    def _play(self) -> None:
        parts = _PARTS_OF_A_LIFE * len(self._round.lives) + 1
        for player in self._players:
            player.play(player.steps // parts)

    def _finish_open(self) -> None:
        for player in self._players:
            player.finish_open()

    def _wait_for_streaming(self, service: ShapesProcess) -> None:
        self._site.wait_until(lambda: bool(service.events("streaming")) or not service.running, _PATIENCE_S)
        self._note("streaming" if service.running else "it has died")

    def _caught_up(self, service: ShapesProcess) -> list[Difference]:
        """Wait until the service has everything, and compare; nothing to compare if it died."""
        target = self._site.wal_lsn()
        self._site.wait_until(
            lambda: (
                not service.running
                or (self._site.confirmed_lsn() >= target and not self._site.awaited_shapes())
            ),
            _PATIENCE_S,
        )
        self._note("caught up" if service.running else "it has died")
        if not service.running:
            return []
        found = self.differences()
        deadline = time.monotonic() + _PATIENCE_S
        while found and all(self._may_be_late(each.shape) for each in found) and time.monotonic() < deadline:
            # What the stream doesn't tell is seen by the next look at the catalog, and then copied.
            time.sleep(1)
            found = self.differences() if service.running else []
        if not found and service.running:
            self._settle(self._events(service))
        return found

    def _settle(self, events: Events) -> None:
        """All is equal again: what strangers did was noticed, and what is gone was left alone."""
        self._disturbances.settle(events)
        for name, version in self._gone.items():
            assert self._site.version(name) == version, f"{name} is not in the file any more"

    def _may_be_late(self, shape: str) -> bool:
        world, table = self._round.worlds[parse_shape_name(shape)[0]], self._table(shape)
        return any(
            is_trick(statement) and table.name in statement
            for writer in world.writers
            for transaction in writer
            for statement in transaction.statements
        )

    def _note(self, what: str) -> None:
        self.history.append(f"{time.monotonic() - self._began:6.1f} s  {what}")

    def _is_over(self, service: ShapesProcess) -> bool:
        return not service.running or self._site.confirmed_lsn() >= self._site.wal_lsn()


def _once(site: ShapesSite) -> Events:
    return site.once(timeout=_PATIENCE_S, STALL_S=_STALL_S)


def _named(
    worlds: Sequence[World], shapes: Callable[[World], Sequence[ShapeOf | None]]
) -> dict[str, ShapeOf]:
    """The shapes of all worlds by their names."""
    return {
        shape_name(index, number): shape
        for index, world in enumerate(worlds)
        for number, shape in enumerate(shapes(world))
        if shape is not None
    }


def shape_name(world: int, shape: int) -> str:
    """What a world's shape is called."""
    return f"w{world}_s{shape}"


def parse_shape_name(name: str) -> tuple[int, int]:
    """The world and the number of a shape."""
    world, _, shape = name.removeprefix("w").partition("_s")
    return int(world), int(shape)


def _schema(world: int) -> str:
    return f"w{world}"

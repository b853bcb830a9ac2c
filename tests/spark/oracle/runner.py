"""RoundRunner: plays a round against a real Postgres and a real service, and compares every shape."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.local.postgres import PrivatePostgres
from tests.servers.shapes_site import ShapesProcess, ShapesSite
from tests.spark.oracle.compare import Difference, compare
from tests.spark.oracle.life import Life, Round
from tests.spark.oracle.player import Player
from tests.spark.oracle.tricks import is_trick

_PATIENCE_S = 240.0
# How long a job takes says nothing here: the machine may be busy with others.
_STALL_S = "600"
_PARTS_OF_A_LIFE = 3


class RoundRunner:
    """Runs one round in a database and a directory of its own.

    Each life has three parts of the writers' statements: while the service starts, while it makes its
    snapshots or catches up, and when it has caught up. Transactions that are open at the end of a life go on
    in the next. None is open while somebody waits for the service: a snapshot waits for them.
    """

    def __init__(self, postgres: PrivatePostgres, database: str, directory: Path, round_: Round) -> None:
        self._postgres = postgres
        self._site = ShapesSite(postgres, database, directory)
        self._round = round_
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
        self._site.once(timeout=_PATIENCE_S, STALL_S=_STALL_S)
        self._note("compared for the last time")
        return self.differences()

    def differences(self) -> list[Difference]:
        """Compare every shape; nobody writes meanwhile, and the service has everything."""
        found = []
        for index, world in enumerate(self._round.worlds):
            for number, shape in enumerate(world.shapes):
                table, name = world.tables[shape.table], shape_name(index, number)
                rows = self._site.sql(shape.query(_schema(index), table))
                columns = [column.name for column in shape.stored(table)]
                difference = compare(name, self._site.table(name), columns, rows)
                self.compared += 1
                if difference is not None:
                    found.append(difference)
        return found

    def _create(self) -> None:
        sections = []
        for index, world in enumerate(self._round.worlds):
            statements = [f"CREATE SCHEMA {_schema(index)}", f"SET search_path = {_schema(index)}"]
            for table in world.tables:
                statements += table.create()
            self._site.sql("; ".join(statements))
            for number, shape in enumerate(world.shapes):
                table = world.tables[shape.table]
                sections.append(shape.to_toml(shape_name(index, number), _schema(index), table))
        self._site.write_file(*sections)

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
            self._play()
            assert service.running or life.ending == "fault", "penstock has ended"
            if life.ending == "fault":
                self._finish_open()
                self._site.wait_until(lambda: self._is_over(service), _PATIENCE_S)
            elif life.ending == "stop":
                service.stop()
                assert service.wait(_PATIENCE_S) == 0, "a service that is stopped ends with 0"
            return found

    @contextmanager
    def _service(self, over: dict[str, str]) -> Iterator[ShapesProcess]:
        with self._site.shapes(STALL_S=_STALL_S, **over) as service:
            yield service
            service.kill9()

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
        return found

    def _may_be_late(self, shape: str) -> bool:
        index, number = parse_shape_name(shape)
        world = self._round.worlds[index]
        table = world.tables[world.shapes[number].table]
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


def shape_name(world: int, shape: int) -> str:
    """What a world's shape is called."""
    return f"w{world}_s{shape}"


def parse_shape_name(name: str) -> tuple[int, int]:
    """The world and the number of a shape."""
    world, _, shape = name.removeprefix("w").partition("_s")
    return int(world), int(shape)


def _schema(world: int) -> str:
    return f"w{world}"

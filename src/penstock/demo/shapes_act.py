"""The second act: Spark keeps three lake tables equal to the shop's, and is killed half-way."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.demo import lake_proof, shop
from penstock.demo.lake_proof import LakeProof
from penstock.demo.processes import Program, Service
from penstock.demo.stage import Stage
from penstock.demo.story import Story
from penstock.demo.watch import Watch
from penstock.lake.spark.jars import cache_directory

SLOT: Final = "shop_to_lake"
SHAPES: Final = ("order_lines", "open_orders", "customers")
_SHAPES_FILE: Final = """\
storage = "./lake"

[[shape]]
name = "order_lines"
table = "public.order_lines"

[[shape]]
name = "open_orders"
table = "public.orders"
where = "status = 'open'"

[[shape]]
name = "customers"
table = "public.customers"
columns = ["id", "orders", "credit"]
"""
_ROWS_METRIC: Final = "penstock_shape_rows{"


@dataclass(frozen=True, slots=True)
class ShapesOutcome:
    """How the act ended."""

    proof: LakeProof
    restart_s: float


class ShapesAct:
    """Played once: `start`, `wait_for_spark`, `wait_for_tables`, `kill_and_start_again`, `wait_until_back`,
    `catch_up`, `stop` unless it stays, `verify`, `prove`.

    One process that is killed and started again, not a leader and a standby: a second Spark would take the
    machine's other core from the shop.
    """

    def __init__(self, stage: Stage, story: Story, watch: Watch) -> None:
        self._stage = stage
        self._story = story
        self._watch = watch
        self._config = stage.directory / "shapes.toml"
        self._answer = stage.directory / "verify.json"
        self._killed_at = 0.0
        self._restart_s = 0.0

    def start(self, at_end: ExitStack) -> Service:
        """Start the service. It is busy with Spark for some seconds, and nobody waits for it here."""
        self._config.write_text(_SHAPES_FILE)
        name = "shapes B" if self._killed_at else "shapes A"
        service = Service(
            name,
            ["shapes", *self._arguments()],
            self._env(),
            self._stage.directory,
            slot=SLOT,
            counter=_ROWS_METRIC,
        )
        at_end.callback(service.close)
        self._watch.add(service)
        return service

    def wait_for_spark(self, service: Service) -> None:
        """Two cores carry the start of a Spark or a busy shop, not both."""
        with self._story.step(f"{service.name} waits for its Spark") as step:
            self._watch.wait(lambda: bool(service.events("started")), "Spark did not start", service)
            step.title = f"{service.name} has its Spark"

    def wait_for_tables(self, service: Service) -> None:
        """Every table is made, while the shop is open."""
        with self._story.step(f"{service.name} copies its first table", loud=True) as step:
            [first] = self._watch.wait(
                lambda: service.events("snapshot_done")[:1], f"{service.name} did not copy a table", service
            )
            step.title = f"{service.name} has made its first Delta table: {first['shape']}"
        with self._story.step(f"{service.name} copies three tables") as step:

            def copied() -> bool:
                return len(service.events("snapshot_done")) == len(SHAPES)

            self._watch.wait(copied, f"{service.name} did not copy the tables", service)
            rows = sum(event["rows"] for event in service.events("snapshot_done"))
            step.title = f"{service.name} has made three Delta tables while the shop is open: {rows:,} rows"

    def kill_and_start_again(self, service: Service, opened: float, at_end: ExitStack) -> Service:
        """`opened` is when the shop was."""
        title = (
            f"kill -9 of {service.name} and its Spark, {time.monotonic() - opened:.1f} s after the opening"
        )
        with self._story.step(title, loud=True):
            self._killed_at = time.time()
            service.kill9()
            return self.start(at_end)

    def wait_until_back(self, service: Service) -> None:
        """The service that was started again has found out where its tables are."""
        with self._story.step(f"{service.name} starts Spark", loud=True) as step:
            led = self._watch.wait(
                lambda: service.led_since(self._killed_at), f"{service.name} did not lead", service
            )
            self._restart_s = led - self._killed_at
            step.title = (
                f"{service.name} goes on where the tables stand, {self._restart_s:.1f} s after the kill"
            )

    def catch_up(self, service: Service) -> None:
        """Everything is in the tables."""
        with self._story.step("the tables catch up: all WAL is confirmed to Postgres"):
            self._watch.wait_until_confirmed(service)

    def stop(self, service: Service) -> None:
        """The service ends."""
        with self._story.step(f"{service.name} is told to stop: it flushes and ends") as step:
            self._watch.stop(service)
            step.title = f"{service.name} was told to stop: flushed, exit code 0"

    def verify(self, at_end: ExitStack) -> Program:
        """Start `penstock verify`; its Spark too takes some seconds."""
        verify = Program(
            "verify",
            ["verify", "--json", *self._arguments()],
            {**self._env(), "REPLICATION_SLOT": SLOT},
            self._stage.directory,
            output=self._answer,
        )
        at_end.callback(verify.close)
        return verify

    def prove(self, verify: Program) -> ShapesOutcome:
        """What `penstock verify` found."""
        with self._story.step("penstock verify: three tables against Postgres, row by row"):
            code = self._watch.wait_for_end(verify)
            proof = lake_proof.read(code, self._answer.read_bytes(), SHAPES, verify.log_tail)
        return ShapesOutcome(proof, self._restart_s)

    def _arguments(self) -> list[str]:
        confs = [f"{name}={value}" for name, value in _spark_settings(self._stage.directory).items()]
        words = [word for conf in confs for word in ("--conf", conf)]
        return ["--config", str(self._config), "--master", "local[2]", *words]

    def _env(self) -> dict[str, str]:
        return {
            **self._stage.postgres.env(shop.DATABASE),
            "SPARK_LOCAL_DIRS": str(self._stage.directory),
            "TMPDIR": str(self._stage.directory),
            "XDG_CACHE_HOME": str(_cache()),
        }


def _spark_settings(directory: Path) -> dict[str, str]:
    """In a life of half a minute, compiling costs more than it saves: Java's methods and Spark's plans alike.

    What Java leaves in `directory` when it is killed goes with that.
    """
    return {
        "spark.driver.memory": "1g",
        "spark.driver.defaultJavaOptions": (
            f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir={directory}"
        ),
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }


def _cache() -> Path:
    """The developer's cache, where Delta's jars are: the programs have another HOME."""
    return cache_directory().parents[2]

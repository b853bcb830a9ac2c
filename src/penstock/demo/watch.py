"""The watch: waits for what should happen, and knows at once when something that should run does not."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, LiteralString, TypeVar

import psycopg

from penstock.demo.processes import Program, Service
from penstock.demo.stage import DemoFailed
from penstock.demo.workload import Workload

_Answer = TypeVar("_Answer")

_PATIENCE_S: Final = 300.0
_POLL_S: Final = 0.05
_WAL_END: Final[LiteralString] = "SELECT pg_current_wal_flush_lsn()::text"
_REACHED: Final[LiteralString] = (
    "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"
)


class Watch:
    """Over the writers and every program that was started."""

    def __init__(self, conninfo: str, workload: Workload) -> None:
        self._conninfo = conninfo
        self._workload = workload
        self._programs: list[Program] = []

    @property
    def services(self) -> list[Service]:
        """Those that were started so far, in that order."""
        return [program for program in self._programs if isinstance(program, Service)]

    def add(self, program: Program) -> None:
        """It was started, and runs until it is told to end."""
        self._programs.append(program)

    def wait(self, ask: Callable[[], _Answer | None], otherwise: str, watched: Program) -> _Answer:
        """Ask until there is an answer; DemoFailed if a process or a writer ends first, or patience does."""
        deadline = time.monotonic() + _PATIENCE_S
        while not (answer := ask()):
            self.look()
            if time.monotonic() > deadline:
                raise DemoFailed(f"{otherwise} within {_PATIENCE_S:.0f} s\n{watched.log_tail()}")
            time.sleep(_POLL_S)
        return answer

    def wait_until_confirmed(self, service: Service) -> None:
        """All WAL that there is now is confirmed by the service's slot."""
        with psycopg.connect(self._conninfo, autocommit=True) as connection:
            [(end,)] = connection.execute(_WAL_END).fetchall()
            self.wait(
                lambda: connection.execute(_REACHED, [end, service.slot]).fetchone() == (True,),
                f"slot {service.slot} did not reach {end}",
                service,
            )

    def stop(self, service: Service) -> None:
        """Tell a service to end; it must do so by itself, and well."""
        service.stop()
        if self.wait_for_end(service) != 0:
            raise died(service)

    def wait_for_end(self, program: Program) -> int:
        """The exit code of a program that ends by itself."""
        self.wait(lambda: program.exit_code is not None, f"{program.name} did not end", program)
        code = program.exit_code
        assert code is not None, "it has ended"
        return code

    def let_work_until(self, moment: float) -> None:
        """Let everybody work."""
        while time.monotonic() < moment:
            self.look()
            time.sleep(_POLL_S)

    def look(self) -> None:
        """Whatever should be running is."""
        self._workload.check()
        for program in self._programs:
            if program.died:
                raise died(program)


def died(program: Program) -> DemoFailed:
    """For a program that ended and should not have, or not so."""
    return DemoFailed(
        f"{program.name} (pid {program.pid}) ended unexpectedly, exit code {program.exit_code};"
        f" {program.log_tail()}"
    )

"""`penstock capture` as a process of its own, to be watched, frozen and killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.local.penstock_process import PENSTOCK, PenstockProcess


class CaptureProcess(PenstockProcess):
    """Any command of `penstock`; when a test fails, the end of its log is printed."""

    def __init__(
        self,
        env: Mapping[str, str],
        args: Sequence[str] = ("capture",),
        *,
        program: Sequence[str] = PENSTOCK,
    ) -> None:
        super().__init__(args, env, program=program)

    def __exit__(self, exc_type: type[BaseException] | None, *rest: object) -> None:
        if exc_type is not None:
            print(f"--- the log of penstock {self.pid} ends with:", self.log_tail(60), sep="\n")
        super().__exit__(exc_type, *rest)

    def wait_for_log(
        self,
        event: str,
        timeout: float = 20.0,
        *,
        count: int = 1,
        where: Callable[[dict[str, Any]], bool] = lambda _: True,
    ) -> dict[str, Any]:
        """Wait until an event was logged `count` times, and give the last of these."""

        def logged() -> dict[str, Any] | None:
            found = [line for line in self.events(event) if where(line)]
            return found[count - 1] if len(found) >= count else None

        times = "" if count == 1 else f" {count} times"
        return self.wait_until(logged, f"logging {event!r}{times}", timeout)

    def freeze(self) -> None:
        """Stop it in the middle of whatever it does (SIGSTOP)."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def cont(self) -> None:
        """Let a frozen process go on (SIGCONT)."""
        self._process.send_signal(signal.SIGCONT)

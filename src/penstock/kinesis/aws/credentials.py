"""CredentialKeeper: AWS credentials that are at hand whenever a request is to be signed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple

from botocore.credentials import ReadOnlyCredentials
from botocore.session import Session

from penstock.kinesis.aws.outcome import Failed
from penstock.kinesis.aws.session import one_line

PATIENCE_S: Final = 30.0
"""How long one look may take before another is begun beside it."""
_LONGEST_PATIENCE_S: Final = 600.0
_LONGEST_LOOK_S: Final = 60.0
_LONGEST_RETRY_S: Final = 15.0
_SHORTEST_S: Final = 1.0

NO_CREDENTIALS: Final = Failed("NoCredentials", "no AWS credentials were found", stream_fault=True)
_PENDING: Final = Failed(
    "CredentialsPending", "whoever gives out AWS credentials has not answered yet", stream_fault=True
)


class HeldCredentials(NamedTuple):
    """Credentials as they were found."""

    credentials: ReadOnlyCredentials
    expires_at: float | None
    """As time.time() tells time; None: never."""


class CredentialKeeper:
    """Looks for credentials, and for new ones long before they expire, in the background.

    botocore asks the metadata service, STS or a program for credentials while it signs. Each of them may
    hang, and may fail with anything: a request that waits for it is sent long after it was checked that it
    may be sent. So:

    1. `take` gives what is at hand, or why there is nothing. It never asks anybody. Only before the first
       look has ended it may wait for that.
    2. Credentials are asked for again when half of their remaining life is over, and every minute at the
       latest; botocore then decides whether new ones are due (15 minutes before the end).
    3. A look that fails, with whatever error, leaves what is at hand as it is until that has expired.
    4. A look that hangs is abandoned, and the next one begins with a session of its own. All threads are
       daemons: nobody waits for them at the end.
    """

    def __init__(self, open_session: Callable[[], Session], *, patience_s: float = PATIENCE_S) -> None:
        self._open_session = open_session
        self._patience_s = patience_s
        self._session: Session | None = None
        self._held: HeldCredentials | None = None
        self._trouble: Failed | None = None
        self._has_looked = threading.Event()
        self._closed = threading.Event()
        threading.Thread(target=self._keep, name="credentials", daemon=True).start()

    @property
    def trouble(self) -> Failed | None:
        """Why the last look failed, while what it was to replace may still be in use; None if it didn't."""
        return self._trouble

    @property
    def expires_at(self) -> float | None:
        """When those at hand expire, as time.time() tells time; None: never, or there are none."""
        held = self._held
        return None if held is None else held.expires_at

    def take(self, *, first_wait_s: float) -> ReadOnlyCredentials | Failed:
        """The credentials at hand; a stream fault if there are none that are good."""
        if not self._has_looked.wait(first_wait_s):
            return _PENDING
        held, trouble = self._held, self._trouble
        if held is None:
            return trouble or NO_CREDENTIALS
        if held.expires_at is not None and held.expires_at <= time.time():
            why = f": {trouble.message}" if trouble is not None else ""
            return Failed("CredentialsExpired", f"the AWS credentials have expired{why}", stream_fault=True)
        return held.credentials

    def close(self) -> None:
        """Look no more."""
        self._closed.set()

    def _keep(self) -> None:
        failures = 0
        patience_s = self._patience_s
        while not self._closed.is_set():
            try:
                found = self._look(patience_s)
            except RuntimeError as error:
                # No more threads, for example: the next look may have one.
                found = Failed("CredentialsRefresh", one_line(error), stream_fault=True)
            if isinstance(found, HeldCredentials):
                self._held, self._trouble = found, None
                failures, patience_s = 0, self._patience_s
                pause_s = pause_after(found, time.time())
            else:
                self._trouble = found
                if self._session is None:
                    patience_s = min(_LONGEST_PATIENCE_S, 2 * patience_s)
                pause_s = min(_LONGEST_RETRY_S, _SHORTEST_S * 2.0 ** min(failures, 10))
                failures += 1
            self._has_looked.set()
            self._closed.wait(pause_s)

    def _look(self, patience_s: float) -> HeldCredentials | Failed:
        """Ask in a thread of its own, which may be left behind."""
        answer: SimpleQueue[HeldCredentials | Failed] = SimpleQueue()
        threading.Thread(target=lambda: answer.put(self._ask()), name="credentials-look", daemon=True).start()
        try:
            return answer.get(timeout=patience_s)
        except Empty:
            # Its locks are held by the thread that hangs.
            self._session = None
            return Failed(
                "CredentialsSlow",
                f"whoever gives out AWS credentials did not answer within {patience_s:.0f} s",
                stream_fault=True,
            )

    def _ask(self) -> HeldCredentials | Failed:
        try:
            if self._session is None:
                self._session = self._open_session()
            found: Any = self._session.get_credentials()
            if found is None:
                return NO_CREDENTIALS
            frozen = found.get_frozen_credentials()
            expiry = getattr(found, "_expiry_time", None)
        except Exception as error:
            # Providers fail with whatever befalls them: a missing file, a page of HTML, a lost program.
            text = one_line(error)
            name = type(error).__name__
            return Failed(
                "CredentialsRefresh", text if text.startswith(name) else f"{name}: {text}", stream_fault=True
            )
        return HeldCredentials(frozen, None if expiry is None else expiry.timestamp())


def pause_after(held: HeldCredentials, now: float) -> float:
    """Seconds until the next look."""
    if held.expires_at is None:
        return _LONGEST_LOOK_S
    return min(_LONGEST_LOOK_S, max(_SHORTEST_S, (held.expires_at - now) / 2))

"""Access: who may see what on the ops port."""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

from penstock.settings.rules import is_loopback

ALWAYS_OPEN: Final = frozenset({"/livez", "/readyz"})
LOGIN: Final = "/login"
_FOR_LOGIN: Final = frozenset({LOGIN, "/page.css"})
SESSION_S: Final = 12 * 3600
_BEARER: Final = "Bearer "


class Access:
    """Decides by what a request brings. Knows no server; time is an argument.

    1. Without a token everything is open, to those who ask for this machine by a name of its own: a web page
       whose name was made to lead here (DNS rebinding) sends its own name.
    2. With a token everything needs it but the probes, what a login shows, and `/metrics` if that was opened.
    3. The token comes as `Authorization: Bearer`, or its holder has a cookie. That is no token: it is an
       expiry signed with the token, so that any replica with the same token takes it, for SESSION_S. What
       an open page is told ends with it.
    4. Whatever is compared with a secret is compared in constant time.
    """

    def __init__(self, token: str | None = None, *, metrics_open: bool = False) -> None:
        self._token = None if token is None else token.encode()
        self._open = ALWAYS_OPEN | ({"/metrics"} if metrics_open else frozenset())

    @property
    def needs_token(self) -> bool:
        """Whether there is one."""
        return self._token is not None

    @property
    def cookie_name(self) -> str:
        """Another token has another cookie: for a browser all ports of a host share their cookies."""
        return f"penstock_{self._sign('name')[:8]}"

    def is_for_all(self, path: str) -> bool:
        """Whether this needs no token, and no name."""
        return path in self._open

    def is_for_login(self, path: str) -> bool:
        """Whether this is needed to log in, and tells nothing."""
        return path in _FOR_LOGIN

    def knows_host(self, host: str) -> bool:
        """Whether a `Host` header may ask here."""
        if self.needs_token:
            return True
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        return is_loopback(name)

    def is_token(self, given: str) -> bool:
        """Whether this is the token."""
        if self._token is None:
            return False
        digests = (hashlib.sha256(each).digest() for each in (given.encode(errors="replace"), self._token))
        return hmac.compare_digest(*digests)

    def bears_token(self, authorization: str) -> bool:
        """Whether an `Authorization` header has it."""
        return authorization.startswith(_BEARER) and self.is_token(authorization[len(_BEARER) :].strip())

    def new_cookie(self, now: float) -> str:
        """For somebody who has shown the token. `now`: Unix seconds."""
        expires = str(int(now + SESSION_S))
        return f"{expires}.{self._sign(expires)}"

    def is_cookie(self, value: str, now: float) -> bool:
        """Whether we gave it out, and not too long ago."""
        ends_at = self.cookie_ends_at(value)
        return ends_at is not None and now < ends_at

    def cookie_ends_at(self, value: str) -> float | None:
        """Until when it counts, in Unix seconds; None if we didn't give it out."""
        expires, _, signature = value.partition(".")
        if self._token is None or not (expires.isascii() and expires.isdecimal() and signature.isascii()):
            return None
        return int(expires) if hmac.compare_digest(self._sign(expires), signature) else None

    def _sign(self, text: str) -> str:
        return hmac.new(self._token or b"", f"penstock page {text}".encode(), hashlib.sha256).hexdigest()

"""What a setting's value must be.

Each function here makes a pydantic validator that reads the text of a variable, or takes a value that already
has the right type, and raises ValueError with nothing but the rule: "must be a whole number from 1 to 500".
The loader in settings/loading.py puts the variable and the value before it.
"""

from __future__ import annotations

import ipaddress
import math
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pydantic import BeforeValidator

_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off"})
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,30}")
_DECIMAL_NUMBER = re.compile(r"[+-]?[0-9]{1,30}(\.[0-9]{1,30})?")
_DIRECTORY_RULE = "must be file:///absolute/dir or s3://bucket/prefix"
_BUCKET_URL = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/([A-Za-z0-9!_.*'()/-]*))?")
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")


def flag() -> BeforeValidator:
    """true or false, in any of the usual spellings."""

    def parse(value: object) -> bool:
        word = str(value).lower()
        if word in _TRUE:
            return True
        if word in _FALSE:
            return False
        raise ValueError("must be true or false (or 1/0, yes/no, on/off)")

    return BeforeValidator(parse)


def whole_number(low: int, high: int | None = None) -> BeforeValidator:
    """A whole number in a closed range."""
    rule = f"must be {low}" if low == high else f"must be a whole number{_span(low, high)}"

    def parse(value: object) -> int:
        if isinstance(value, str) and _WHOLE_NUMBER.fullmatch(value):
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(rule)
        if value < low or (high is not None and value > high):
            raise ValueError(rule)
        return value

    return BeforeValidator(parse)


def seconds(low: float, high: float | None = None, *, above_low: bool = False) -> BeforeValidator:
    """A number of seconds in a range; `above_low` leaves `low` itself out."""
    rule = f"must be a number of seconds{f' greater than {low:g}' if above_low else _span(low, high)}"

    def parse(value: object) -> float:
        if isinstance(value, str) and _DECIMAL_NUMBER.fullmatch(value):
            value = float(value)
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise ValueError(rule)
        if value < low or (above_low and value == low) or (high is not None and value > high):
            raise ValueError(rule)
        return float(value)

    return BeforeValidator(parse)


def one_of(*words: str, why: str = "") -> BeforeValidator:
    """One of a few words, spelled exactly; `why` follows the rule."""
    listed = ", ".join(words[:-1]) + " or " + words[-1] if len(words) > 1 else words[0]

    def parse(value: object) -> object:
        if value not in words:
            raise ValueError(f"must be {listed}{why}")
        return value

    return BeforeValidator(parse)


def matching(pattern: str, rule: str) -> BeforeValidator:
    """Text that a pattern matches as a whole."""
    compiled = re.compile(pattern)

    def parse(value: object) -> str:
        if not isinstance(value, str) or not compiled.fullmatch(value):
            raise ValueError(rule)
        return value

    return BeforeValidator(parse)


def text(longest: int | None = None) -> BeforeValidator:
    """Free text. A variable of broken UTF-8 would otherwise fail much later, where it is first encoded."""
    rule = "must be UTF-8 text" if longest is None else f"must be 1 to {longest} characters of UTF-8 text"

    def parse(value: object) -> str:
        if not isinstance(value, str) or not value or (longest is not None and len(value) > longest):
            raise ValueError(rule)
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(rule) from None
        return value

    return BeforeValidator(parse)


def host() -> BeforeValidator:
    """A name or an address to listen on."""

    def parse(value: object) -> str:
        if isinstance(value, str) and (_HOST_NAME.fullmatch(value) or _is_address(value)):
            return value
        raise ValueError("must be a host name or an IP address, without a port")

    return BeforeValidator(parse)


def is_loopback(name: str) -> bool:
    """Whether a host is this machine, and no other can reach it."""
    if name.lower() == "localhost":
        return True
    bare = name.strip("[]")
    return _is_address(bare) and ipaddress.ip_address(bare).is_loopback


def http_url() -> BeforeValidator:
    """Where a server other than AWS's own listens."""
    rule = "must be a URL such as http://127.0.0.1:4566, without user name or password"

    def parse(value: object) -> str:
        try:
            parts = urlsplit(value if isinstance(value, str) else "")
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            raise ValueError(rule) from None
        if not isinstance(value, str) or not usable or "@" in parts.netloc or parts.query or parts.fragment:
            raise ValueError(rule)
        return value

    return BeforeValidator(parse)


def directory_url() -> BeforeValidator:
    """A directory, as `file:///absolute/dir`, or a part of a bucket."""

    def parse(value: object) -> str:
        if not isinstance(value, str):
            raise ValueError(_DIRECTORY_RULE)
        if bucket_of(value) is None:
            directory_of(value)
        return value

    return BeforeValidator(parse)


def bucket_of(url: str) -> tuple[str, str] | None:
    """Bucket and prefix of `s3://bucket/prefix`; None for any other URL."""
    found = _BUCKET_URL.fullmatch(url)
    return None if found is None else (found[1], (found[2] or "").strip("/"))


def directory_of(url: str) -> Path:
    """The directory that `file:///absolute/dir` names; ValueError for any other URL."""
    path = unquote(urlsplit(url).path)
    if not url.startswith("file:///") or "?" in url or "#" in url or "\0" in path or not path.strip("/"):
        raise ValueError(_DIRECTORY_RULE)
    return Path(path)


def _is_address(word: str) -> bool:
    try:
        ipaddress.ip_address(word)
    except ValueError:
        return False
    return True


def _span(low: float, high: float | None) -> str:
    if high is None:
        return f", {low} or more"
    return f" from {low} to {high}"

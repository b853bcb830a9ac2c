"""What libraries may say in our log."""

from __future__ import annotations

import logging

import pytest

from penstock.ops.logs import LibraryThrottle


def said(throttle: LibraryThrottle, name: str, *, line: int = 1, at: float = 0.0) -> bool:
    error = OSError("why")
    trace = (OSError, error, None)
    record = logging.LogRecord(name, logging.WARNING, "/lib.py", line, "it failed", None, trace)
    record.created = at
    passes = throttle.filter(record)
    assert not passes or name == "ours" or record.exc_info is None, "a traceback"
    return passes


@pytest.mark.parametrize("name", ["botocore.credentials", "urllib3.connectionpool"])
def test_a_library_says_each_thing_once_a_minute(name: str) -> None:
    throttle = LibraryThrottle()

    passed = [at for at in (0.0, 1.0, 59.0, 60.0, 61.0) if said(throttle, name, at=at)]

    assert passed == [0.0, 60.0]
    assert said(throttle, name, line=2, at=62.0)


def test_others_are_let_speak() -> None:
    throttle = LibraryThrottle()

    assert all(said(throttle, "ours") for _ in range(3))

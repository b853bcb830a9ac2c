"""A Spark that is stopped while its Java may be ending by itself."""

from __future__ import annotations

from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from penstock.lake.spark import spark_session
from penstock.lake.spark.spark_session import stop_session


class Stopping:
    """As far as `stop_session` knows it: Java may be gone before, during, or not at all."""

    def __init__(self, *, exit_codes: list[int | None], fails: bool) -> None:
        self.exit_codes = exit_codes
        self.fails = fails
        self.stops = 0

    def stop(self) -> None:
        self.stops += 1
        if self.fails:
            raise ConnectionRefusedError("Java doesn't answer")

    def exit_code(self, wait_s: float = 0.0) -> int | None:
        return self.exit_codes.pop(0)


def stopped(monkeypatch: pytest.MonkeyPatch, *exit_codes: int | None, fails: bool) -> int:
    spark = Stopping(exit_codes=list(exit_codes), fails=fails)
    monkeypatch.setattr(spark_session, "java_exit_code", spark.exit_code)
    stop_session(cast(SparkSession, cast(Any, spark)))
    return spark.stops


def test_an_ordinary_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    assert stopped(monkeypatch, None, fails=False) == 1


def test_java_that_is_gone_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert stopped(monkeypatch, 143, fails=True) == 0


def test_java_that_was_told_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert stopped(monkeypatch, None, 143, fails=True) == 1


def test_java_that_lives_and_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConnectionRefusedError):
        stopped(monkeypatch, None, None, fails=True)

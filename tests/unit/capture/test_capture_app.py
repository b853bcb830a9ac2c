"""The outer loop of capture: what befalls the probe of the destination ends nothing."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from structlog.testing import capture_logs

from penstock.capture.app import CaptureApp
from penstock.kinesis.aws.outcome import Failed
from penstock.settings.loading import load_capture_settings

VARIABLES = {"AWS_REGION": "eu-west-1", "KINESIS_STREAM": "s", "STANDBY_RETRY_INTERVAL_S": "0.01"}


class Sink:
    """A destination whose probes end as they are told to."""

    def __init__(self, *outcomes: Failed | Exception | None) -> None:
        self.outcomes = list(outcomes)

    def probe(self) -> Failed | None:
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def credentials_expire_at(self) -> float | None:
        return None


def app_with(sink: Any) -> CaptureApp:
    return CaptureApp(load_capture_settings(VARIABLES, dotenv=None), sink=sink)


async def test_whatever_a_probe_raises_is_said_and_waited_out() -> None:
    sink = Sink(KeyError("secret"), Failed("Gone", "no such stream", stream_fault=True), None)
    with capture_logs() as said:
        assert not await app_with(sink)._wait_for_sink()

    assert [(line["event"], line["detail"]) for line in said] == [
        ("sink_down", "ProbeFailed: KeyError"),
        ("sink_down", "Gone: no such stream"),
    ]
    assert sink.outcomes == []


async def test_a_sink_that_answers_is_not_waited_for() -> None:
    assert await app_with(Sink(None))._wait_for_sink()


async def test_a_process_without_threads_waits_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start
    refused: list[threading.Thread] = []

    def refuse_once(thread: threading.Thread) -> None:
        if not refused:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_once)
    with capture_logs() as said:
        await app_with(Sink(None))._wait_for_sink()
    assert [line["detail"] for line in said] == ["ProbeFailed: RuntimeError"]

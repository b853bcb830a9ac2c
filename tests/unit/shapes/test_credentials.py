"""The credentials of shapes that have to do with a stream: how long they last is in the status."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.kinesis.read.marked_stream import StreamAddress
from penstock.model.shape import ShapesFile
from penstock.settings.loading import load_shapes_settings
from penstock.shapes.app import Run, ShapesApp
from penstock.shapes.credentials import watch_credentials
from penstock.status.metrics import ShapesMetrics

TABLES = ShapesFile("shapes.toml", "/lake", ())
STREAM = ShapesFile("shapes.toml", "kinesis://shapes", ())
SOURCE = StreamAddress("shop", "shop", "etl", "eu-west-1")


@pytest.fixture(autouse=True)
def credentials_for_an_hour(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = {
        "Version": 1,
        "AccessKeyId": "a",
        "SecretAccessKey": "b",
        "SessionToken": "c",
        "Expiration": (datetime.now(UTC) + timedelta(hours=1)).isoformat(),
    }
    (tmp_path / "given.json").write_text(json.dumps(given))
    (tmp_path / "config").write_text(f"[default]\ncredential_process = cat {tmp_path}/given.json\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_REGION", "eu-west-1")


@pytest.mark.parametrize(("file", "source"), [(TABLES, SOURCE), (STREAM, None), (STREAM, SOURCE)])
def test_a_stream_needs_some(file: ShapesFile, source: StreamAddress | None) -> None:
    nothing: Any = None
    settings = load_shapes_settings({}, dotenv=None)
    app = ShapesApp(settings, file, Run("local", {}, stream=source), spark=nothing, progress=nothing)
    assert app._credentials is not None
    app._credentials.take(first_wait_s=30)

    status = app._board.read()
    app._credentials.close()

    assert status.credentials_expire_s == pytest.approx(3600, abs=60)
    assert "penstock_credentials_expire_seconds 3" in ShapesMetrics().exposition(status).decode()


def test_tables_of_a_slot_need_none_nor_does_a_stream_that_cant_be_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert watch_credentials(TABLES, None) is None
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    assert watch_credentials(STREAM, None) is None

"""Planted secrets and row values are nowhere to be read: ops port, page, manifests, the log to its end."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlencode

import pytest

from penstock.demo.marked_stream import MarkedStream
from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from tests.servers.capture_process import CaptureProcess
from tests.servers.capture_site import CaptureSite
from tests.servers.fault_proxy import FaultProxy
from tests.servers.shapes_site import ShapesSite, shape_lines
from tests.servers.streamed_site import MARKED

TOKEN = "planted-token-5f1c2e9a"
WRONG_TOKEN = "planted-wrong-token-0b"
ROW = "planted-row-value-77"
PASSWORD = "planted-password-31"
AWS_SECRET = "planted-aws-secret-88"
SECRETS = (TOKEN, WRONG_TOKEN, ROW, PASSWORD, AWS_SECRET)
PLANTED = {
    "OPS_TOKEN": TOKEN,
    "PGPASSWORD": PASSWORD,
    "AWS_SECRET_ACCESS_KEY": AWS_SECRET,
    "PENSTOCK_LOG_LEVEL": "debug",
}
PATHS = ("/", "/page.js", "/page.css", "/status", "/metrics", "/readyz", "/livez", "/nowhere")
GUARDED = ("/page.js", "/status", "/metrics", "/events")
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def answer(url: str, token: str | None, form: dict[str, str] | None = None) -> tuple[int, str]:
    """Status and body; of an endless answer its first event. No redirect is followed with a form."""
    request = urllib.request.Request(url, data=None if form is None else urlencode(form).encode())
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with DIRECT.open(request, timeout=10) as got:
            lines = iter(got.readline, b"\n" if url.endswith("/events") else b"")
            return got.status, b"".join(lines).decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, f"{refused.headers}{refused.read().decode()}"


def everything_answered(process: CaptureProcess) -> str:
    """All that the ops port says, to those who have the token, and to others."""
    url, told = process.ops_url, []
    for path in (*PATHS, "/events"):
        for token in (TOKEN, None, WRONG_TOKEN):
            status, text = answer(f"{url}{path}", token)
            assert path not in GUARDED or (status == 200) == (token == TOKEN), path
            told.append(text)
    status, text = answer(f"{url}/login", None, {"token": WRONG_TOKEN})
    assert status == 401
    return "".join([*told, text])


@contextmanager
def nothing_is_told(process: CaptureProcess) -> Iterator[list[str]]:
    """The process ends here; neither what is put into the list nor its whole log has a secret."""
    told: list[str] = []
    with process:
        yield told
        process.stop()
        process.wait(60)
        log = process.log_text()
    assert '"stopped"' in log, "the log is that of its end, too"
    for secret in SECRETS:
        assert secret not in log
        assert all(secret not in text for text in told)


def test_capture_and_the_manifests(
    postgres: PrivatePostgres, database: str, kinesis: LocalKinesis, stream: str
) -> None:
    with FaultProxy(kinesis.endpoint_url, secret_key=AWS_SECRET) as proxy:
        own = {**MARKED, **PLANTED, "SINK_OUTAGE_DISCONNECT_S": "1", "STANDBY_RETRY_INTERVAL_S": "0.5"}
        site = CaptureSite(postgres, database, kinesis, stream, AWS_ENDPOINT_URL_KINESIS=proxy.url, **own)
        site.psql("CREATE TABLE t (id text PRIMARY KEY, v text)")
        with nothing_is_told(capture := site.capture()) as told:
            capture.wait_for_log("streaming")
            site.psql(f"INSERT INTO t VALUES ('{ROW}-1', '{ROW}')")
            site.wait_until_confirmed()
            told.append(everything_answered(capture))
            proxy.outage()
            site.psql(f"UPDATE t SET v = v || '{ROW}'")
            capture.wait_for_log("sink_down")
            told.append(everything_answered(capture))
            proxy.restore()
            site.wait_until_confirmed()
    read = MarkedStream(kinesis.read_all(stream), site.slot)
    assert any(ROW.encode() in record.data for record in read.records), "rows are in records alone"
    assert read.manifests
    for manifest in read.manifests:
        assert not [secret for secret in SECRETS if secret.encode() in manifest]


@pytest.mark.timeout(300)
def test_shapes(shapes_site: ShapesSite) -> None:
    site = shapes_site
    for name in ("kept", "lost"):
        site.sql(f"CREATE TABLE {name} (id text PRIMARY KEY, v text)")
        site.sql(f"INSERT INTO {name} VALUES ('{ROW}-1', '{ROW}')")
    site.write_file(shape_lines("kept", f"where = \"v <> '{ROW}-else'\""), shape_lines("lost"))
    site.sql("ALTER TABLE kept REPLICA IDENTITY FULL")
    with nothing_is_told(shapes := site.shapes(**PLANTED)) as told:
        shapes.wait_for_log("snapshot_done", 120, count=2)
        told.append(everything_answered(shapes))
        site.sql(f"DROP TABLE lost; INSERT INTO kept VALUES ('{ROW}-2', '{ROW}')")
        shapes.wait_for_log("shape_parked", 60)
        site.wait_equal("kept", ["id"], "SELECT id FROM kept", 120, shapes)
        told.append(everything_answered(shapes))
    assert "public.lost was dropped or renamed" in told[-1], "the page was told of the failing shape"

"""The handle on a `penstock capture` process, tried on a stand-in."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.local.penstock_process import ProcessFailed
from tests.servers.capture_process import CaptureProcess

STAND_IN = """
import http.server, json, os, signal, threading, time
class Ops(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/readyz" else 503)
        self.end_headers()
        self.wfile.write(b"body")
    def log_message(self, *args): pass
server = http.server.HTTPServer(("127.0.0.1", int(os.environ["OPS_PORT"])), Ops)
threading.Thread(target=server.serve_forever, daemon=True).start()
signal.signal(signal.SIGTERM, lambda *_: os._exit(3))
ops = f"http://127.0.0.1:{server.server_port}"
print(json.dumps({"event": "started", "ops": ops, "variables": sorted(os.environ)}), flush=True)
print("not structured", flush=True)
number = 0
while True:
    print(json.dumps({"event": "beat", "number": (number := number + 1)}), flush=True)
    time.sleep(0.005)
"""


@pytest.fixture
def process() -> Iterator[CaptureProcess]:
    env = {"SETTING": "1", "LANG": "C"}
    with CaptureProcess(env, ("-c", STAND_IN), program=(sys.executable,)) as process:
        yield process


def test_runs_with_a_clean_environment_and_tells_its_events(process: CaptureProcess) -> None:
    started = process.wait_for_log("started")
    allowed = {"PATH", "HOME", "JAVA_HOME", "PYTHONPATH", "OPS_PORT", "SETTING", "LANG", "LC_CTYPE"}
    assert {"SETTING", "OPS_PORT"} <= set(started["variables"]) <= allowed
    assert process.wait_for_log("beat", count=3)["number"] == 3
    assert process.wait_for_log("beat", where=lambda line: line["number"] > 4)["number"] == 5
    assert "not structured" in process.log_text()
    assert process.get("/readyz") == (200, "body")
    assert process.get("/other") == (503, "body")
    assert process.rss_bytes() > 1_000_000
    assert process.cpu_seconds() >= 0


def test_freezes_and_goes_on(process: CaptureProcess) -> None:
    process.wait_for_log("beat")
    process.freeze()
    frozen = len(process.events("beat"))
    state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
    assert (state, process.running) == ("T", True)
    assert len(process.events("beat")) == frozen
    process.cont()
    process.wait_for_log("beat", count=frozen + 1)


def test_stops_or_dies(process: CaptureProcess) -> None:
    process.wait_for_log("started")
    process.stop()
    assert process.wait() == 3
    with pytest.raises(ProcessFailed, match=r"ended \(3\) before logging 'never'"):
        process.wait_for_log("never")


def test_prints_its_log_on_failure(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        with CaptureProcess({}, ("-c", STAND_IN), program=(sys.executable,)) as process:
            process.wait_for_log("beat")
            process.kill9()
            assert process.wait() == -9
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert "not structured" in capsys.readouterr().out

"""A security token service that gives out credentials late, for a short time, as HTML, or never."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from penstock.local.kinesis import ACCESS_KEY_ID, SECRET_ACCESS_KEY

_ANSWER = """\
<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
 <AssumeRoleWithWebIdentityResult>
  <Credentials>
   <AccessKeyId>{key}</AccessKeyId><SecretAccessKey>{secret}</SecretAccessKey>
   <SessionToken>a-token</SessionToken><Expiration>{expires}</Expiration>
  </Credentials>
  <AssumedRoleUser><Arn>arn:aws:sts::123456789012:assumed-role/r/s</Arn><AssumedRoleId>r:s</AssumedRoleId>
  </AssumedRoleUser>
 </AssumeRoleWithWebIdentityResult>
</AssumeRoleWithWebIdentityResponse>
"""


class FakeSts(ThreadingHTTPServer):
    """Answers AssumeRoleWithWebIdentity; what `delay_s`, `lifetime_s` and `html` say counts at once."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.delay_s = 0.0
        self.lifetime_s = 3600.0
        self.html = False
        self.asked = 0
        self._released = threading.Event()
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._released.set()
        self.shutdown()
        self._thread.join()
        self.server_close()

    def env(self, token_file: Path) -> dict[str, str]:
        """The variables of a process that gets its credentials here, and nowhere else."""
        return {
            "AWS_ENDPOINT_URL_STS": f"http://127.0.0.1:{self.server_port}",
            "AWS_WEB_IDENTITY_TOKEN_FILE": str(token_file),
            "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/r",
            "AWS_ACCESS_KEY_ID": "",
            "AWS_SECRET_ACCESS_KEY": "",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/nonexistent",
            "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
        }

    def wait(self) -> None:
        """Be as slow as is asked for, or until the server ends."""
        deadline = time.monotonic() + self.delay_s
        while (left := deadline - time.monotonic()) > 0 and not self._released.wait(min(left, 0.05)):
            deadline = min(deadline, time.monotonic() + self.delay_s)

    def answer(self) -> bytes:
        """What STS says now."""
        if self.html:
            return b"<html><body>503 from a load balancer</body>"
        expires = datetime.now(UTC) + timedelta(seconds=self.lifetime_s)
        text = _ANSWER.format(
            key=ACCESS_KEY_ID, secret=SECRET_ACCESS_KEY, expires=expires.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        )
        return text.encode()


class _Handler(BaseHTTPRequestHandler):
    server: FakeSts

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked += 1
        self.server.wait()
        body = self.server.answer()
        try:
            self.send_response(200)
            self.send_header("Content-Type", "text/xml")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            return  # whoever asked has gone

    def log_message(self, format: str, *args: Any) -> None:
        """Silence: the default writes to stderr."""

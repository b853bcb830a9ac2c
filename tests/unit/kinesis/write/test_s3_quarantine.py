"""S3Quarantine when what lies before S3 fails; a real S3 protocol is in tests/integration."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Any

import pytest
from botocore.exceptions import ClientError, NoCredentialsError
from botocore.parsers import ResponseParserError

from penstock.kinesis.write import s3_quarantine as module
from penstock.kinesis.write.quarantine import QuarantineError
from penstock.kinesis.write.s3_quarantine import S3Quarantine

DENIED = ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "PutObject")
FAILURES = [
    pytest.param(ResponseParserError("a page of HTML"), id="STS answers HTML"),
    pytest.param(NoCredentialsError(), id="no credentials"),
    pytest.param(FileNotFoundError("token"), id="no token file"),
    pytest.param(KeyError("AccessKeyId"), id="half an answer"),
]


class Client:
    """S3, and what is asked before it: `failure` is raised by every call."""

    def __init__(self, failure: Exception | None) -> None:
        self._failure = failure

    def put_object(self, **_: object) -> None:
        if self._failure is not None:
            raise self._failure

    head_bucket = put_object

    def get_object(self, **_: object) -> dict[str, BytesIO]:
        return {"Body": BytesIO(b"payload")}


class Session:
    """Gives one client after the other; an error is raised instead."""

    def __init__(self, *clients: Client | Exception) -> None:
        self.clients = list(clients)

    def create_client(self, *_: object, **__: object) -> Client:
        made = self.clients.pop(0)
        if isinstance(made, Exception):
            raise made
        return made


def quarantine(patch: pytest.MonkeyPatch, *clients: Client | Exception) -> S3Quarantine:
    session = Session(*clients)
    patch.setattr(module, "open_session", lambda region: session)
    return S3Quarantine("bucket", "prefix", "eu-west-1")


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("act", [lambda store: store.store("one", b"payload"), lambda store: store.look()])
@pytest.mark.parametrize("while_made", [False, True])
def test_whatever_fails_is_said_and_tried_with_a_new_client(
    monkeypatch: pytest.MonkeyPatch,
    failure: Exception,
    act: Callable[[S3Quarantine], Any],
    while_made: bool,
) -> None:
    store = quarantine(monkeypatch, failure if while_made else Client(failure), Client(None))
    with pytest.raises(QuarantineError, match="s3://bucket"):
        act(store)
    act(store)


def test_a_client_to_which_s3_says_no_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    store = quarantine(monkeypatch, Client(DENIED))
    for _ in range(2):
        with pytest.raises(QuarantineError, match="AccessDenied"):
            store.store("one", b"payload")

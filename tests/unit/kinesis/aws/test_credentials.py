"""CredentialKeeper with botocore's own chain, against an STS on this machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from botocore import UNSIGNED
from botocore.config import Config
from botocore.credentials import ReadOnlyCredentials
from botocore.session import Session

from penstock.kinesis.aws.credentials import NO_CREDENTIALS, CredentialKeeper, HeldCredentials, pause_after
from penstock.kinesis.aws.outcome import Failed
from penstock.kinesis.aws.session import ca_bundle_of, open_session
from penstock.local.kinesis import ACCESS_KEY_ID
from penstock.settings.errors import SettingsError
from tests.servers.capture_site import wait_until
from tests.servers.fake_sts import FakeSts


def new_session() -> Session:
    return open_session("eu-west-1")


@pytest.fixture(scope="module")
def running_sts() -> Iterator[FakeSts]:
    with FakeSts() as sts:
        yield sts


@pytest.fixture
def sts(running_sts: FakeSts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSts:
    token = tmp_path / "token"
    token.write_text("a token")
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    for name, value in running_sts.env(token).items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)
    running_sts.delay_s, running_sts.lifetime_s, running_sts.html = 0.0, 3600.0, False
    return running_sts


@pytest.fixture
def keeper(sts: FakeSts) -> Iterator[CredentialKeeper]:
    keeper = CredentialKeeper(new_session)
    yield keeper
    keeper.close()


def key_of(taken: ReadOnlyCredentials | Failed) -> str | None:
    return None if isinstance(taken, Failed) else str(taken.access_key)


def test_credentials_are_at_hand_after_the_first_look(keeper: CredentialKeeper, sts: FakeSts) -> None:
    assert key_of(keeper.take(first_wait_s=10)) == ACCESS_KEY_ID
    asked = sts.asked

    for _ in range(100):
        keeper.take(first_wait_s=0)

    assert sts.asked == asked


def test_nobody_waits_for_an_sts_that_does_not_answer(sts: FakeSts) -> None:
    sts.delay_s = 60
    keeper = CredentialKeeper(new_session)
    started = time.monotonic()

    taken = keeper.take(first_wait_s=0.1)

    assert isinstance(taken, Failed)
    assert (taken.code, taken.stream_fault) == ("CredentialsPending", True)
    assert time.monotonic() - started < 5
    keeper.close()


def test_short_lived_credentials_are_renewed_before_they_expire(sts: FakeSts) -> None:
    sts.lifetime_s = 3
    keeper = CredentialKeeper(new_session)
    until = time.monotonic() + 4.5

    taken = set()
    while time.monotonic() < until:
        taken.add(key_of(keeper.take(first_wait_s=10)))
        time.sleep(0.01)

    assert taken == {ACCESS_KEY_ID}
    keeper.close()


def test_what_is_at_hand_serves_until_it_expires(sts: FakeSts) -> None:
    sts.lifetime_s = 2.5
    keeper = CredentialKeeper(new_session)
    assert key_of(keeper.take(first_wait_s=10)) == ACCESS_KEY_ID
    sts.html = True

    wait_until(lambda: keeper.trouble, "a failed look")
    assert key_of(keeper.take(first_wait_s=0)) == ACCESS_KEY_ID
    expired = wait_until(lambda: (t := keeper.take(first_wait_s=0)) and isinstance(t, Failed) and t, "expiry")
    assert expired.code == "CredentialsExpired"
    assert "ResponseParserError" in expired.message

    sts.html = False
    wait_until(lambda: key_of(keeper.take(first_wait_s=0)), "new credentials")
    keeper.close()


def test_a_missing_token_file_is_a_sentence(sts: FakeSts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/nonexistent/token")
    keeper = CredentialKeeper(new_session)

    taken = keeper.take(first_wait_s=10)

    assert isinstance(taken, Failed)
    assert (taken.code, taken.stream_fault) == ("CredentialsRefresh", True)
    assert taken.message.startswith("FileNotFoundError: ")
    assert "/nonexistent/token" in taken.message
    keeper.close()


def test_html_from_sts_is_a_sentence(sts: FakeSts) -> None:
    sts.html = True
    keeper = CredentialKeeper(new_session)

    taken = keeper.take(first_wait_s=10)

    assert isinstance(taken, Failed)
    assert taken.message.startswith("ResponseParserError: ")
    assert "\n" not in taken.message
    keeper.close()


def test_no_credentials_at_all(sts: FakeSts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ROLE_ARN")
    monkeypatch.delenv("AWS_WEB_IDENTITY_TOKEN_FILE")
    keeper = CredentialKeeper(new_session)

    assert keeper.take(first_wait_s=10) == NO_CREDENTIALS
    keeper.close()


def test_a_look_that_hangs_is_left_behind(sts: FakeSts) -> None:
    hang = threading.Event()
    sessions: list[int] = []

    def first_hangs() -> Session:
        sessions.append(1)
        if len(sessions) == 1:
            hang.wait(30)
        return new_session()

    keeper = CredentialKeeper(first_hangs, patience_s=0.2)

    slow = keeper.take(first_wait_s=10)
    assert isinstance(slow, Failed)
    assert slow.code == "CredentialsSlow"
    assert wait_until(lambda: key_of(keeper.take(first_wait_s=0)), "a second look") == ACCESS_KEY_ID
    hang.set()
    keeper.close()


@pytest.mark.parametrize(
    ("expires_at", "pause_s"), [(None, 60.0), (10_000.0, 60.0), (1_020.0, 10.0), (1_001.0, 1.0), (900.0, 1.0)]
)
def test_the_next_look_comes_when_half_of_the_time_is_over(expires_at: float | None, pause_s: float) -> None:
    held = HeldCredentials(ReadOnlyCredentials("k", "s", None), expires_at)

    assert pause_after(held, now=1_000.0) == pause_s


def test_an_unknown_profile_is_a_bad_setting(sts: FakeSts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")

    with pytest.raises(SettingsError, match="AWS_PROFILE='nobody': there is no such profile"):
        new_session()


@pytest.mark.parametrize(
    ("content", "why"), [(None, "No such file or directory"), ("not a certificate", "holds no certificates")]
)
def test_certificates_that_cannot_be_used_are_a_bad_setting(
    sts: FakeSts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str | None, why: str
) -> None:
    bundle = tmp_path / "ca.pem"
    if content is not None:
        bundle.write_text(content)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(bundle))

    with pytest.raises(SettingsError, match=why):
        ca_bundle_of(new_session())


def test_sts_is_asked_in_the_region_of_the_stream(sts: FakeSts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL_STS")

    client = new_session().create_client("sts", config=Config(signature_version=UNSIGNED))

    assert client.meta.endpoint_url == "https://sts.eu-west-1.amazonaws.com"

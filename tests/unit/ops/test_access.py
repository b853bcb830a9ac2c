"""Who may see what on the ops port."""

from __future__ import annotations

import pytest

from penstock.ops.access import SESSION_S, Access

TOKEN = "correct-horse-battery-staple"
NOW = 1_800_000_000.0


@pytest.fixture
def access() -> Access:
    return Access(TOKEN)


@pytest.mark.parametrize(
    ("given", "is_right"),
    [
        (f"Bearer {TOKEN}", True),
        (f"Bearer  {TOKEN} ", True),
        (f"bearer {TOKEN}", False),
        (TOKEN, False),
        (f"Bearer {TOKEN[:-1]}", False),
        (f"Bearer {TOKEN}e", False),
        ("Bearer ", False),
        ("Bearer \udcff", False),
        ("", False),
    ],
)
def test_the_header(access: Access, given: str, is_right: bool) -> None:
    assert access.bears_token(given) is is_right


def test_a_cookie_is_good_for_its_time_and_is_no_token(access: Access) -> None:
    cookie = access.new_cookie(NOW)

    assert access.is_cookie(cookie, NOW + SESSION_S - 1)
    assert not access.is_cookie(cookie, NOW + SESSION_S)
    assert TOKEN not in cookie
    assert not access.is_token(cookie)


def test_a_replica_with_the_same_token_takes_it(access: Access) -> None:
    other = Access(TOKEN)
    assert other.cookie_name == access.cookie_name
    assert other.is_cookie(access.new_cookie(NOW), NOW)


def test_another_token_has_another_cookie(access: Access) -> None:
    other = Access(f"{TOKEN}-2")
    assert other.cookie_name != access.cookie_name
    assert not other.is_cookie(access.new_cookie(NOW), NOW)


@pytest.mark.parametrize("value", ["", ".", "1.2", "x.y", "²." + "0" * 64, "9999999999.", "9999999999.é"])
def test_what_is_no_cookie(access: Access, value: str) -> None:
    assert not access.is_cookie(value, NOW)


def test_a_later_expiry_needs_a_signature_of_its_own(access: Access) -> None:
    expires, _, signature = access.new_cookie(NOW).partition(".")
    assert not access.is_cookie(f"{int(expires) + 1}.{signature}", NOW)


def test_without_a_token_nothing_is_one() -> None:
    access = Access()
    assert not access.needs_token
    assert not access.is_token("")
    assert not access.is_cookie(access.new_cookie(NOW), NOW)


@pytest.mark.parametrize(
    ("path", "for_all"),
    [
        ("/livez", True),
        ("/readyz", True),
        ("/metrics", False),
        ("/status", False),
        ("/", False),
        ("/events", False),
    ],
)
def test_probes_are_open(access: Access, path: str, for_all: bool) -> None:
    assert access.is_for_all(path) is for_all


def test_metrics_can_be_opened() -> None:
    assert Access(TOKEN, metrics_open=True).is_for_all("/metrics")


@pytest.mark.parametrize(
    ("host", "is_known"),
    [
        ("localhost", True),
        ("LocalHost:8088", True),
        ("127.0.0.1:8088", True),
        ("127.1.2.3", True),
        ("[::1]:8088", True),
        ("[::1]", True),
        ("evil.example", False),
        ("evil.example:8088", False),
        ("127.0.0.1.evil.example:8088", False),
        ("10.0.0.1:8088", False),
        ("", False),
    ],
)
def test_without_a_token_only_this_machine_by_its_own_names(host: str, is_known: bool) -> None:
    assert Access().knows_host(host) is is_known
    assert Access(TOKEN).knows_host(host), "who has the token may call us anything"

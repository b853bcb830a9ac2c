"""botocore's session: where AWS is, and how we may reach it. What is wrong with it is said at the start."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import BotoCoreError, InvalidRegionError, ProfileNotFound
from botocore.session import Session

from penstock.settings.errors import SettingsError

CONNECT_S: Final = 5.0
ANSWER_S: Final = 10.0
"""For those that give out credentials (STS, SSO). Retries are ours: botocore's take minutes."""


def open_session(region: str) -> Session:
    """A session whose own clients don't wait for long; SettingsError if the AWS configuration is no good."""
    session = Session()
    # botocore itself looks at AWS_DEFAULT_REGION only, and STS has an endpoint in each region.
    session.set_config_variable("region", region)
    session.set_default_client_config(
        Config(connect_timeout=CONNECT_S, read_timeout=ANSWER_S, retries={"total_max_attempts": 1})
    )
    try:
        session.get_scoped_config()
    except ProfileNotFound:
        raise SettingsError(
            f"AWS_PROFILE={session.profile!r}: there is no such profile in the AWS configuration files"
        ) from None
    except BotoCoreError as error:
        raise SettingsError(f"the AWS configuration can't be used: {one_line(error)}") from None
    return session


def ca_bundle_of(session: Session) -> str | None:
    """The file of certificates to trust, None for the usual ones; SettingsError if it isn't usable."""
    path: str | None = session.get_config_variable("ca_bundle")
    if path is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
        except OSError as error:
            why = "it holds no certificates" if isinstance(error, ssl.SSLError) else error.strerror
            raise SettingsError(f"AWS_CA_BUNDLE={path!r}: can't be used: {why}") from None
    return path


class Endpoints:
    """Where the operations of one stream are: by its ARN, an account has hosts of its own for them."""

    def __init__(
        self, session: Session, *, region: str, endpoint_url: str | None, stream: Mapping[str, str]
    ) -> None:
        try:
            # Unsigned: a client that signs would look for credentials here and now.
            client: Any = session.create_client(
                "kinesis",
                region_name=region,
                endpoint_url=endpoint_url,
                config=Config(signature_version=UNSIGNED),
            )
        except (BotoCoreError, ValueError) as error:
            is_endpoint = endpoint_url is not None and not isinstance(error, InvalidRegionError)
            value = f"AWS_ENDPOINT_URL_KINESIS={endpoint_url!r}" if is_endpoint else f"AWS_REGION={region!r}"
            raise SettingsError(f"{value}: {one_line(error)}") from None
        client.meta.events.register("before-send.kinesis", _reveal)
        record = {"Data": b"", "PartitionKey": "-"}
        self.put = _address(client.put_records, **stream, Records=[record])
        self.describe = _address(client.describe_stream_summary, **stream)
        client.close()


class _Found(Exception):
    """Carries the address of a request that was about to be sent."""


def _reveal(request: Any, **_: object) -> NoReturn:
    raise _Found(request.url)


def _address(operation: Any, **arguments: object) -> str:
    try:
        operation(**arguments)
    except _Found as found:
        return str(found)
    raise AssertionError("botocore sent a request that it was not to send")


def one_line(error: BaseException) -> str:
    """An error's text for a log: on one line, of a sane length."""
    return " ".join(str(error).split())[:300] or type(error).__name__

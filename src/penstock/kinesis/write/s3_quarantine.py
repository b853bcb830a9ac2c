"""A quarantine in a bucket: one object a payload, put once and read back."""

from __future__ import annotations

from typing import Any, Final

from botocore.config import Config
from botocore.exceptions import ClientError

from penstock.kinesis.aws.session import one_line, open_session
from penstock.kinesis.write.quarantine import QuarantineError

_CONFIG: Final = Config(connect_timeout=5, read_timeout=20, retries={"total_max_attempts": 1})
_TAKEN: Final = frozenset({"PreconditionFailed", "412"})


class S3Quarantine:
    """Objects under a prefix of a bucket. The client is made when it is first needed: in a thread."""

    def __init__(self, bucket: str, prefix: str, region: str) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._region = region
        self._client: Any = None

    def store(self, name: str, payload: bytes) -> str:
        """See QuarantineStore. A conditional PUT replaces nothing; what counts is what is read back."""
        key = f"{self._prefix}/{name}" if self._prefix else name
        url = f"s3://{self._bucket}/{key}"
        try:
            self._put_once(key, payload)
            stored = self._open().get_object(Bucket=self._bucket, Key=key)["Body"].read()
        except Exception as error:
            raise self._failed(f"can't store {url}", error) from error
        if stored != payload:
            raise QuarantineError(f"can't store {url}: it holds other content")
        return url

    def look(self) -> None:
        """Whether the bucket is there; QuarantineError if not. Writes nothing."""
        try:
            self._open().head_bucket(Bucket=self._bucket)
        except Exception as error:
            raise self._failed(f"s3://{self._bucket} can't be reached", error) from error

    def _failed(self, what: str, error: Exception) -> QuarantineError:
        """Whatever befell it: credentials are asked for on the way, and fail with more than botocore's own.

        A client keeps what it found when it was made, also that there were no credentials: the next attempt
        makes another one, unless it was S3 that said no.
        """
        if not isinstance(error, ClientError):
            self._client = None
        return QuarantineError(f"{what}: {one_line(error)}")

    def _put_once(self, key: str, payload: bytes) -> None:
        try:
            self._open().put_object(Bucket=self._bucket, Key=key, Body=payload, IfNoneMatch="*")
        except ClientError as error:
            if str(error.response.get("Error", {}).get("Code")) not in _TAKEN:
                raise

    def _open(self) -> Any:
        client = self._client
        if client is None:
            client = self._client = open_session(self._region).create_client(
                "s3", region_name=self._region, config=_CONFIG
            )
        return client

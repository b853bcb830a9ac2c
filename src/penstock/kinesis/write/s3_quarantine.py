"""A quarantine in a bucket: one object a payload, put once and read back."""

from __future__ import annotations

from typing import Any, Final

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

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
        except (BotoCoreError, ClientError, OSError) as error:
            raise QuarantineError(f"can't store {url}: {one_line(error)}") from error
        if stored != payload:
            raise QuarantineError(f"can't store {url}: it holds other content")
        return url

    def look(self) -> None:
        """Whether the bucket is there; QuarantineError if not. Writes nothing."""
        try:
            self._open().head_bucket(Bucket=self._bucket)
        except (BotoCoreError, ClientError, OSError) as error:
            raise QuarantineError(f"s3://{self._bucket} can't be reached: {one_line(error)}") from error

    def _put_once(self, key: str, payload: bytes) -> None:
        try:
            self._open().put_object(Bucket=self._bucket, Key=key, Body=payload, IfNoneMatch="*")
        except ClientError as error:
            if str(error.response.get("Error", {}).get("Code")) not in _TAKEN:
                raise

    def _open(self) -> Any:
        if self._client is None:
            self._client = open_session(self._region).create_client(
                "s3", region_name=self._region, config=_CONFIG
            )
        return self._client

"""The body of GetRecords' answer, taken apart at a twentieth of what it costs botocore.

botocore walks over each record's members and makes a time of each time: some 15 µs a record, which is more
than everything else that happens to a record on its way into Spark.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from botocore.exceptions import BotoCoreError

EVENT: Final = "before-parse.kinesis.GetRecords"
"""botocore's, for which `take_page` is."""
PAGE: Final = "Page"
"""The member of the answer in which the page is then."""


class FoundRecord(msgspec.Struct, gc=False, rename="pascal"):
    """A record, as it is in the body."""

    sequence_number: str
    partition_key: str
    data: bytes
    approximate_arrival_timestamp: float


class FoundPage(msgspec.Struct, rename="pascal"):
    """What we read of the body."""

    records: list[FoundRecord]
    next_shard_iterator: str | None = None
    millis_behind_latest: int | None = None


class PageUnreadable(BotoCoreError):  # type: ignore[misc]  # botocore has no types
    """A body that is not GetRecords' answer. It may pass: a proxy's page, half an answer."""

    fmt = "the answer is not what GetRecords answers: {reason}"


_decode = msgspec.json.Decoder(FoundPage).decode


def take_page(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: object) -> None:
    """Decode the body, and leave botocore nothing of it; its errors stay with botocore."""
    if response_dict["status_code"] >= 300:
        return
    try:
        customized_response_dict[PAGE] = _decode(response_dict["body"])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PageUnreadable(reason=error) from None
    response_dict["body"] = b"{}"

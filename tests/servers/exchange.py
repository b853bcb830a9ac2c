"""One Kinesis call on its way through the fault proxy to the emulator and back."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import aiohttp

from tests.servers.kinesis_rules import Refusal, SentRecord, read_records
from tests.servers.request_log import LoggedRecord

PUT_RECORDS = "PutRecords"
# As Kinesis says it of a shard that is at its limit: nothing else in the answer names the shard.
_FAILED = "Rate exceeded for shard shardId-000000000002 in stream changes under account 123456789012."

_NOT_PASSED_ON = {"host", "content-length", "connection", "transfer-encoding", "expect"}


@dataclass(frozen=True)
class Call:
    """A request as it came; header names are in lower case."""

    operation: str
    headers: Mapping[str, str]
    body: bytes
    records: tuple[SentRecord, ...] = ()
    unreadable: Refusal | None = None

    @classmethod
    def read(cls, headers: Mapping[str, str], body: bytes) -> Call:
        """Read a call, and its records if it is a PutRecords."""
        operation = headers.get("x-amz-target", "").rpartition(".")[2]
        if operation != PUT_RECORDS:
            return cls(operation, headers, body)
        records = read_records(body)
        if isinstance(records, Refusal):
            return cls(operation, headers, body, unreadable=records)
        return cls(operation, headers, body, records)


@dataclass(frozen=True)
class Reply:
    """What the client is to hear, and what became of each record."""

    status: int
    body: bytes
    outcome: str
    records: tuple[LoggedRecord, ...]

    def unheard(self) -> Reply:
        """The same fate, of which the client hears nothing."""
        return replace(
            self, outcome="cut", records=tuple(replace(record, outcome="cut") for record in self.records)
        )


def refuse(call: Call, refusal: Refusal) -> Reply:
    """Answer a call with an error, and forward nothing."""
    return Reply(refusal.status, refusal.body(), refusal.code, _fates(call, refusal.code, forwarded=False))


async def forward(session: aiohttp.ClientSession, url: str, call: Call, failing: Mapping[int, str]) -> Reply:
    """Pass a call on, without the records that are to fail, and put their errors into the answer."""
    if not failing:
        status, body = await _post(session, url, call.headers, call.body)
        code = "ok" if status == 200 else _error_code(body)
        return Reply(status, body, code, _fates(call, "accepted" if status == 200 else code, forwarded=True))
    request = json.loads(call.body)
    request["Records"] = [entry for at, entry in enumerate(request["Records"]) if at not in failing]
    answer: dict[str, Any] = {"Records": []}
    if request["Records"]:
        status, body = await _post(session, url, call.headers, json.dumps(request).encode())
        if status != 200:
            return Reply(status, body, _error_code(body), _fates(call, _error_code(body), forwarded=True))
        answer = json.loads(body)
    taken = iter(answer["Records"])
    answer["Records"] = [
        {"ErrorCode": failing[at], "ErrorMessage": _FAILED} if at in failing else next(taken)
        for at in range(len(call.records))
    ]
    answer["FailedRecordCount"] = len(failing)
    fates = tuple(
        LoggedRecord(record.key, record.data, at not in failing, failing.get(at, "accepted"))
        for at, record in enumerate(call.records)
    )
    return Reply(200, json.dumps(answer).encode(), "partial", fates)


def amend_summary(reply: Reply, members: Mapping[str, str | int]) -> Reply:
    """The same reply, with these members in the stream's summary."""
    if not members:
        return reply
    answer = json.loads(reply.body)
    answer["StreamDescriptionSummary"] |= members
    return replace(reply, body=json.dumps(answer).encode())


async def _post(
    session: aiohttp.ClientSession, url: str, headers: Mapping[str, str], body: bytes
) -> tuple[int, bytes]:
    passed_on = {name: value for name, value in headers.items() if name not in _NOT_PASSED_ON}
    async with session.post(url, headers=passed_on, data=io.BytesIO(body)) as answer:
        return answer.status, await answer.read()


def _fates(call: Call, outcome: str, *, forwarded: bool) -> tuple[LoggedRecord, ...]:
    return tuple(LoggedRecord(record.key, record.data, forwarded, outcome) for record in call.records)


def _error_code(body: bytes) -> str:
    return str(json.loads(body)["__type"])

"""The destination's side of `penstock check`: the stream and the quarantine. No record is written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

from penstock.finding import Finding
from penstock.settings import KinesisSettings

ANSWER_S: Final = 5.0

_NO_SUCH_STREAM: Final = "ResourceNotFoundException"
_USABLE: Final = frozenset({"ACTIVE", "UPDATING"})


def check_stream(settings: KinesisSettings) -> Finding:
    """Ask for the stream's summary; blocks for a few seconds at most."""
    try:
        summary = _describe(settings)
    except ClientError as error:
        details = error.response.get("Error", {})
        return judge_refusal(settings, details.get("Code", "Unknown"), details.get("Message", ""))
    except NoCredentialsError:
        return Finding.fail(
            "stream",
            "no AWS credentials were found",
            "give this process a role (IRSA, an instance profile) or AWS_ACCESS_KEY_ID and its secret",
        )
    except BotoCoreError as error:
        return Finding.fail(
            "stream",
            f"Kinesis can't be asked: {_brief(str(error))}",
            "check AWS_REGION, AWS_ENDPOINT_URL_KINESIS and the way out to the network",
        )
    return judge_stream(settings, summary)


def judge_refusal(settings: KinesisSettings, code: str, message: str) -> Finding:
    """What an error of DescribeStreamSummary means."""
    if code.startswith("AccessDenied"):
        return Finding.warn(
            "stream",
            f"{settings.stream!r} can't be described by this role ({code})",
            "none, if the stream exists and the role has kinesis:PutRecords; to have it checked,"
            " allow kinesis:DescribeStreamSummary",
        )
    if code == _NO_SUCH_STREAM:
        return Finding.fail(
            "stream",
            f"{settings.stream!r} does not exist in {settings.region}",
            f"aws kinesis create-stream --stream-name {settings.stream} --region {settings.region},"
            " or correct KINESIS_STREAM and AWS_REGION",
        )
    return Finding.fail("stream", f"{code}: {_brief(message)}", "mend the credentials or the stream")


def judge_stream(settings: KinesisSettings, summary: Mapping[str, Any]) -> Finding:
    """What DescribeStreamSummary says, against our settings."""
    status = summary.get("StreamStatus", "unknown")
    mode = summary.get("StreamModeDetails", {}).get("StreamMode", "PROVISIONED")
    found = (
        f"{settings.stream!r} is {status}: {summary.get('OpenShardCount', '?')} shards, {mode},"
        f" keeps records {summary.get('RetentionPeriodHours', '?')} h,"
        f" encryption {summary.get('EncryptionType', 'NONE')}"
    )
    if status not in _USABLE:
        return Finding.fail("stream", found, "wait until it is ACTIVE, or choose another KINESIS_STREAM")
    largest_kib = summary.get("MaxRecordSizeInKiB")
    if largest_kib is not None and settings.max_record_bytes > largest_kib * 1024:
        return Finding.warn(
            "stream",
            f"{found}; it takes records up to {largest_kib * 1024} bytes,"
            f" KINESIS_MAX_RECORD_BYTES is {settings.max_record_bytes}",
            "raise the stream's record size, or lower the setting",
        )
    return Finding.ok("stream", found, "only the first record shows whether this role may write to it")


def check_quarantine(directory: Path) -> Finding:
    """Whether payloads could be stored: tries a file without a name there, or in the nearest parent."""
    try:
        existing = next(place for place in (directory, *directory.parents) if place.exists())
        with tempfile.TemporaryFile(dir=existing) as file:
            os.fsync(file.fileno())
    except OSError as error:
        return Finding.fail(
            "quarantine",
            f"{directory} is not writable: {error.strerror}",
            "correct QUARANTINE_URL, or make the directory writable for this user",
        )
    if existing != directory:
        return Finding.ok("quarantine", f"{directory} does not exist", "it is made when it is first needed")
    return Finding.ok("quarantine", f"{directory} is writable")


def _describe(settings: KinesisSettings) -> Mapping[str, Any]:
    config = Config(connect_timeout=ANSWER_S, read_timeout=ANSWER_S, retries={"total_max_attempts": 1})
    client = botocore.session.get_session().create_client(
        "kinesis", region_name=settings.region, endpoint_url=settings.endpoint_url, config=config
    )
    try:
        answer: Mapping[str, Any] = client.describe_stream_summary(StreamName=settings.stream)
    finally:
        client.close()
    summary: Mapping[str, Any] = answer["StreamDescriptionSummary"]
    return summary


def _brief(text: str) -> str:
    return " ".join(text.split())[:300]

"""The destination's side of `penstock check`: the stream and the quarantine. No record is written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from penstock.durable import try_to_write
from penstock.finding import Finding
from penstock.kinesis.aws.credentials import NO_CREDENTIALS
from penstock.kinesis.aws.outcome import Failed
from penstock.kinesis.write.client import KinesisClient, ignores_keys, keys_ignored
from penstock.kinesis.write.quarantine import QuarantineError
from penstock.kinesis.write.s3_quarantine import S3Quarantine
from penstock.settings.kinesis import KinesisSettings
from penstock.settings.rules import bucket_of, directory_of

ANSWER_S: Final = 5.0

_NO_SUCH_STREAM: Final = "ResourceNotFoundException"
_USABLE: Final = frozenset({"ACTIVE", "UPDATING"})


def check_stream(
    settings: KinesisSettings,
    *,
    keys_matter: bool = True,
    may_be_unordered: bool = False,
    named_by: str = "KINESIS_STREAM",
) -> Finding:
    """Ask for the stream's summary, as a capture would; blocks for some seconds at most.

    `keys_matter`, `may_be_unordered`: as KinesisClient has them. `named_by`: where its name stands.
    SettingsError if the AWS configuration is no good.
    """
    client = KinesisClient(
        stream=settings.stream,
        region=settings.region,
        endpoint_url=settings.endpoint_url,
        connect_timeout_s=ANSWER_S,
        read_timeout_s=ANSWER_S,
    )
    try:
        summary = client.describe()
    finally:
        client.close()
    if isinstance(summary, Failed):
        return judge_refusal(settings, summary, named_by)
    return judge_stream(
        settings, summary, keys_matter=keys_matter, may_be_unordered=may_be_unordered, named_by=named_by
    )


def judge_refusal(settings: KinesisSettings, failed: Failed, named_by: str = "KINESIS_STREAM") -> Finding:
    """What an error of DescribeStreamSummary means."""
    code = failed.code
    if code == NO_CREDENTIALS.code:
        return Finding.fail(
            "stream",
            failed.message,
            "give this process a role (IRSA, an instance profile) or AWS_ACCESS_KEY_ID and its secret",
        )
    if code.startswith("Credentials"):
        return Finding.fail(
            "stream",
            f"no AWS credentials can be had: {failed.message}",
            "fix what gives them out: the role, its token file, the profile, or the way to STS",
        )
    if code.startswith("AccessDenied"):
        return Finding.warn(
            "stream",
            f"{settings.stream!r} can't be described by this role ({code})",
            f"none, if the stream exists and the role has {_rights(settings)}; to have it checked,"
            " allow kinesis:DescribeStreamSummary",
        )
    if code == _NO_SUCH_STREAM:
        return Finding.fail(
            "stream",
            f"{settings.stream!r} does not exist in {settings.region}",
            f"aws kinesis create-stream --stream-name {settings.stream_name} --region {settings.region},"
            f" or correct {named_by} and AWS_REGION",
        )
    if failed.stream_fault:
        return Finding.fail("stream", f"{code}: {failed.message}", "fix the credentials or the stream")
    return Finding.fail(
        "stream",
        f"Kinesis can't be asked: {code}: {failed.message}",
        "check AWS_REGION, AWS_ENDPOINT_URL_KINESIS and the way out to the network",
    )


def judge_stream(
    settings: KinesisSettings,
    summary: Mapping[str, Any],
    *,
    keys_matter: bool = True,
    may_be_unordered: bool = False,
    named_by: str = "KINESIS_STREAM",
) -> Finding:
    """What DescribeStreamSummary says, against our settings."""
    status = summary.get("StreamStatus", "unknown")
    mode = summary.get("StreamModeDetails", {}).get("StreamMode", "PROVISIONED")
    shards = summary.get("OpenShardCount", "?")
    found = (
        f"{settings.stream!r} is {status}: {shards} shard{'s' * (shards != 1)}, {mode},"
        f" keeps records {summary.get('RetentionPeriodHours', '?')} h,"
        f" encryption {summary.get('EncryptionType', 'NONE')}"
    )
    if status not in _USABLE:
        return Finding.fail("stream", found, f"wait until it is ACTIVE, or choose another {named_by}")
    if keys_matter and ignores_keys(summary):
        ignored = keys_ignored(may_be_unordered=may_be_unordered)
        why, _, fix = ignored.message.partition(" Fix: ")
        return Finding.fail("stream", f"{found}; {why}", fix)
    largest_kib = summary.get("MaxRecordSizeInKiB")
    if largest_kib is not None and settings.max_record_bytes > largest_kib * 1024:
        return Finding.warn(
            "stream",
            f"{found}; it takes records up to {largest_kib * 1024} bytes,"
            f" KINESIS_MAX_RECORD_BYTES is {settings.max_record_bytes}",
            "raise the stream's record size, or lower the setting",
        )
    return Finding.ok(
        "stream",
        found,
        f"only the first record shows whether this role may write to it ({_rights(settings)})",
    )


def _rights(settings: KinesisSettings) -> str:
    manifests = ", and kinesis:PutRecord on the stream of the manifests"
    return f"kinesis:PutRecords{manifests if settings.marked_stream else ''}"


def check_quarantine(url: str, region: str) -> Finding:
    """Whether payloads could be stored."""
    bucket = bucket_of(url)
    return _check_directory(directory_of(url)) if bucket is None else _check_bucket(*bucket, region)


def _check_bucket(bucket: str, prefix: str, region: str) -> Finding:
    """Only asks whether it is there: nothing is written."""
    try:
        S3Quarantine(bucket, prefix, region).look()
    except QuarantineError as error:
        return Finding.fail(
            "quarantine", str(error), "correct QUARANTINE_URL, or allow s3:ListBucket on the bucket"
        )
    return Finding.ok(
        "quarantine",
        f"s3://{bucket} is there",
        "only the first payload shows whether this role may write to it (s3:PutObject, s3:GetObject)",
    )


def _check_directory(directory: Path) -> Finding:
    """Tries a file without a name there, or in the nearest parent."""
    try:
        existing = try_to_write(directory)
    except OSError as error:
        return Finding.fail(
            "quarantine",
            f"{directory} is not writable: {error.strerror}",
            "correct QUARANTINE_URL, or make the directory writable for this user",
        )
    if existing != directory:
        return Finding.ok("quarantine", f"{directory} does not exist", "it is made when it is first needed")
    return Finding.ok("quarantine", f"{directory} is writable")

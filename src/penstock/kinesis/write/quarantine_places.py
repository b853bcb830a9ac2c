"""Which quarantine a URL names."""

from __future__ import annotations

from penstock.kinesis.write.quarantine import FileQuarantine, QuarantineStore
from penstock.kinesis.write.s3_quarantine import S3Quarantine
from penstock.settings.rules import bucket_of, directory_of


def open_quarantine(url: str, region: str) -> QuarantineStore:
    """The store: `file:///absolute/dir` or `s3://bucket/prefix`; ValueError for anything else."""
    found = bucket_of(url)
    return FileQuarantine(directory_of(url)) if found is None else S3Quarantine(*found, region)

"""What a storage is, by how it is written."""

from __future__ import annotations

import pytest

from penstock.lake.storages.kinds import BUCKET, DIRECTORY, KINDS, STORAGE_RULE, STREAM, Kind, kind_of


@pytest.mark.parametrize(
    ("storage", "kind"),
    [
        ("/lake", DIRECTORY),
        ("lake", DIRECTORY),
        ("s3a://bucket", BUCKET),
        ("s3a://bucket/path/", BUCKET),
        ("s3a://key:secret@bucket", None),
        ("kinesis://stream", STREAM),
        ("kinesis://stream?marks=other", STREAM),
        ("kinesis://a/b", None),
        ("s3://bucket", None),
        ("dbfs:/lake", None),
        ("~/lake", None),
        ("", None),
        ("s3a://bucket/\n", None),
    ],
)
def test_a_kind_is_known_by_its_form(storage: str, kind: Kind | None) -> None:
    assert kind_of(storage) is kind


def test_the_rule_names_every_kind() -> None:
    assert all(kind.said in STORAGE_RULE for kind in KINDS)

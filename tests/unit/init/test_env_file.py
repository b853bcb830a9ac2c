"""The `.env` that `penstock init` writes, read back by those who read it: us, and a shell."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from penstock.init.env_file import EnvFacts, connection_variables, render_env
from penstock.settings.errors import SettingsError
from penstock.settings.loading import _read_dotenv, load_capture_settings, load_shapes_settings

FACTS = EnvFacts(
    database="shop",
    connection={"PGHOST": "db.example.com", "PGPORT": "5432", "PGUSER": "penstock", "PGDATABASE": "shop"},
    region="eu-west-1",
    stream="shop-changes",
    tables=12,
    size_bytes=3 << 20,
    without_identity=[],
)


def read_by_shell(path: Path, *names: str) -> list[str]:
    script = f". {path}; printf '%s\\n' " + " ".join(f'"${name}"' for name in names)
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True, env={})
    assert done.stderr == ""
    return done.stdout.removesuffix("\n").split("\n")


@pytest.mark.parametrize(
    "value", ["plain", "with spaces", 'a "quote"', "#no comment", "a=b;c", "$HOME", "/run/a,/run/b", "ü & ö"]
)
def test_both_readers_read_what_was_meant(value: str, tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_text(render_env(FACTS._replace(connection={"PGUSER": value})))

    assert _read_dotenv(path)["PGUSER"] == value
    assert read_by_shell(path, "PGUSER", "KINESIS_STREAM") == [value, "shop-changes"]


@pytest.mark.parametrize("value", ["it's", "two\nlines", "${HOME}", "back\\slash"])
def test_a_value_that_the_two_would_read_differently_is_left_out(value: str, tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_text(render_env(FACTS._replace(connection={"PGUSER": value})))

    assert "PGUSER" not in _read_dotenv(path)
    assert read_by_shell(path, "PGUSER") == [""]
    assert value not in path.read_text()


def test_capture_and_shapes_take_it(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_text(render_env(FACTS))

    capture = load_capture_settings({}, path)
    assert (capture.kinesis.region, capture.kinesis.stream) == ("eu-west-1", "shop-changes")
    assert capture.replication.slot != load_shapes_settings({}, path).replication.slot


def test_what_nobody_knows_is_to_be_filled_in(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_text(render_env(FACTS._replace(region=None, stream=None)))

    with pytest.raises(SettingsError, match="AWS_REGION is not set") as refused:
        load_capture_settings({}, path)
    assert len(refused.value.lines) == 2
    assert load_shapes_settings({}, path)


def test_tables_whose_changes_are_left_out_are_named() -> None:
    names = [f"public.t{number}" for number in range(22)]
    text = render_env(FACTS._replace(without_identity=["public.bad\nname", *names[:21]]))
    assert "'public.bad\\nname', public.t0, " in text
    assert "public.t18 and 2 more\n" in text
    assert all(line.startswith("#") or "=" in line or not line for line in text.split("\n"))


CONNECTED = {"PGHOST": "10.0.0.1", "PGPORT": "5432", "PGUSER": "me", "PGDATABASE": "shop"}


@pytest.mark.parametrize(
    ("environ", "variables"),
    [
        pytest.param({}, CONNECTED, id="libpq's defaults"),
        pytest.param(
            {"PGHOST": "a,b", "PGUSER": ""}, {**CONNECTED, "PGHOST": "a,b"}, id="several hosts, one chosen"
        ),
        pytest.param(
            {"PGSERVICE": "shop", "PGDATABASE": "other"},
            {"PGDATABASE": "other", "PGSERVICE": "shop"},
            id="a service file",
        ),
        pytest.param(
            {"PGPASSWORD": "hunter2", "PGOPTIONS": "-c x=hunter2", "PGSSLMODE": "require"},
            {**CONNECTED, "PGSSLMODE": "require"},
            id="no secret is copied",
        ),
    ],
)
def test_the_way_to_the_server(environ: dict[str, str], variables: dict[str, str]) -> None:
    assert connection_variables(environ, CONNECTED) == variables

"""deploy/terraform: its form, its types against the provider's, its tests; its SQL on a real server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from penstock.local.postgres import PrivatePostgres
from penstock.local.postgres_programs import PostgresPrograms
from tests.deploy.programs import DEPLOY, find, run
from tests.markdown_pages import PAGES, fences

MODULE = DEPLOY / "terraform"
# A copy of the provider for machines that don't reach Terraform's registry.
MIRROR = Path("/opt/tf-plugins")
SQL = {
    "database": "postgres",
    "capture_role": "penstock_capture",
    "shapes_role": "penstock_shapes",
    "schemas": ["public", "Shop"],
    "table_owner": None,
    "rds": False,
    "max_slot_wal_keep_size": "50GB",
}
# What an example takes for granted.
READERS_OWN = """
resource "aws_iam_openid_connect_provider" "cluster" {
  url            = "https://oidc.example"
  client_id_list = ["sts.amazonaws.com"]
}
"""


@pytest.fixture(scope="module")
def terraform() -> str:
    return find("terraform", "install Terraform 1.7 or later")


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """No settings of the developer's, and nobody is asked whether there is a newer version."""
    empty = tmp_path_factory.mktemp("terraform") / "terraform.rc"
    empty.touch()
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "SSL_CERT_FILE") if name in os.environ}
    return {**kept, "TF_CLI_CONFIG_FILE": str(empty), "CHECKPOINT_DISABLE": "1", "TF_IN_AUTOMATION": "1"}


def test_it_is_formatted(terraform: str, environ: dict[str, str]) -> None:
    run(terraform, "fmt", "-check", "-recursive", "-diff", MODULE, env=environ)


def test_the_examples_in_docs_call_the_module_as_it_is(
    terraform: str, environ: dict[str, str], tmp_path: Path
) -> None:
    blocks = [(page, fence.text) for page in PAGES for fence in fences(page.read_text(), "hcl")]
    assert blocks
    mirror = [f"-plugin-dir={MIRROR}"] if MIRROR.is_dir() else []
    for number, (page, text) in enumerate(blocks):
        copy = tmp_path / str(number)
        # The place that the example names.
        shutil.copytree(MODULE, copy / "deploy" / "terraform")
        (copy / "main.tf").write_text(text)
        run(terraform, "fmt", "-check", "-diff", copy / "main.tf", env=environ)
        (copy / "reader.tf").write_text(READERS_OWN)
        run(terraform, "init", "-input=false", "-backend=false", *mirror, cwd=copy, env=environ)
        said = json.loads(run(terraform, "validate", "-json", cwd=copy, env=environ))
        assert (said["valid"], said["warning_count"]) == (True, 0), page


def test_it_is_valid_and_its_policies_are_the_least(
    terraform: str, environ: dict[str, str], tmp_path: Path
) -> None:
    copy = tmp_path / "module"
    shutil.copytree(MODULE, copy)
    mirror = [f"-plugin-dir={MIRROR}"] if MIRROR.is_dir() else []
    run(terraform, "init", "-input=false", "-backend=false", *mirror, cwd=copy, env=environ)
    run(terraform, "validate", "-no-color", cwd=copy, env=environ)
    said = run(terraform, "test", "-no-color", cwd=copy, env=environ)
    assert "0 failed" in said
    assert "0 passed" not in said


def _render(terraform: str, environ: dict[str, str], directory: Path, **over: object) -> str:
    """The SQL, as the module's output has it."""
    template, values = json.dumps(str(MODULE / "postgres.sql.tftpl")), json.dumps(SQL | over)
    expression = f"jsonencode(templatefile({template}, {values}))"
    done = subprocess.run(
        [terraform, "console"],
        input=expression,
        cwd=directory,
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    text: str = json.loads(json.loads(done.stdout))
    return text


def test_the_sql_makes_roles_that_can_do_their_work(
    terraform: str, environ: dict[str, str], tmp_path: Path
) -> None:
    script = tmp_path / "roles.sql"
    script.write_text(_render(terraform, environ, tmp_path))
    psql = PostgresPrograms.find().bindir / "psql"
    with PrivatePostgres() as server:
        server.psql('CREATE SCHEMA "Shop"; CREATE TABLE "Shop".orders (id int PRIMARY KEY)')
        for _ in range(2):
            run(psql, "--no-psqlrc", "--quiet", "--dbname", server.conninfo(), "--file", script)
        server.restart()
        server.psql('CREATE TABLE "Shop".later (id int PRIMARY KEY)')
        roles = server.psql(
            "SELECT rolname, rolreplication, rolsuper FROM pg_roles WHERE rolname LIKE 'penstock%' ORDER BY 1"
        )
        assert roles == [("penstock_capture", True, False), ("penstock_shapes", True, False)]
        rights = """
            SELECT has_table_privilege(role, '"Shop".orders', 'SELECT'),
                   has_table_privilege(role, '"Shop".later', 'SELECT'),
                   has_table_privilege(role, '"Shop".orders', 'INSERT')
            FROM unnest(ARRAY['penstock_capture', 'penstock_shapes']) AS role
        """
        assert server.psql(rights) == [(False, False, False), (True, True, False)]
        assert server.psql("SHOW max_slot_wal_keep_size") == [("50GB",)]
        assert server.psql("SHOW wal_level") == [("logical",)]


def test_on_rds_the_sql_alters_no_server(terraform: str, environ: dict[str, str], tmp_path: Path) -> None:
    text = _render(terraform, environ, tmp_path, rds=True)
    assert "ALTER SYSTEM" not in text
    assert 'GRANT rds_replication TO "penstock_capture", "penstock_shapes";' in text

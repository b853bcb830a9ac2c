"""A leadership hangs up while others of its tasks wait for answers: they fail, and the process lives."""

from __future__ import annotations

import ast
import os
import subprocess
import sys

from penstock.local.postgres import PrivatePostgres
from tests.faults.hang_up_child import TIMES, TURNS


def test_hanging_up_in_the_middle_of_queries(postgres: PrivatePostgres, database: str) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-X",
            "faulthandler",
            "-m",
            "tests.faults.hang_up_child",
            postgres.conninfo(database),
        ],
        # What is freed is overwritten: whoever uses it can't get away with it.
        env={**os.environ, "MALLOC_PERTURB_": "165"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    seen = ast.literal_eval(done.stdout)
    assert seen["cancelled"] == 1
    assert seen["failed"] > 0
    assert seen["answered"] > 0
    assert seen["failed"] + seen["answered"] == TURNS * TIMES

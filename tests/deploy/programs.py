"""The programs that read what is in deploy/.

Debian has no recent kubectl and no Terraform, so `make setup` can't bring them: without one, its tests are
skipped, and say so.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

ROOT: Final = Path(__file__).resolve().parents[2]
DEPLOY: Final = ROOT / "deploy"
RENDERED: Final = ("base/capture", "base/shapes", "overlays/example", "overlays/spark-on-kubernetes")
"""What somebody may apply."""


def find(program: str, fix: str) -> str:
    """Its path; the test is skipped if it isn't there."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed. Fix: {fix}")
    return found


def run(
    *command: str | Path, cwd: Path = ROOT, env: Mapping[str, str] | None = None, timeout: float = 120
) -> str:
    """Run it to its end; its output, or an assertion with all that it said."""
    done = subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=timeout
    )
    assert done.returncode == 0, f"{command[0]} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


def promtool() -> str:
    """Prometheus' own checker; the first call on a machine fetches it."""
    return run(ROOT / "scripts" / "promtool").strip()


def kustomize(directory: str) -> list[dict[str, Any]]:
    """The objects of a base or an overlay."""
    kubectl = find("kubectl", "install kubectl 1.27 or later: it has kustomize inside")
    return list(yaml.safe_load_all(run(kubectl, "kustomize", DEPLOY / "kubernetes" / directory)))

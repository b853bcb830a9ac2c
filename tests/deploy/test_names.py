"""deploy/ names what exists: variables, metrics, paragraphs of the docs; and no registry."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from psycopg import pq
from pydantic.fields import FieldInfo

from penstock.settings.services import CaptureSettings, ShapesSettings
from penstock.status.metrics import CaptureMetrics, ServiceMetrics, ShapesMetrics
from tests.deploy.programs import DEPLOY, ROOT

FILES = [path for path in sorted(DEPLOY.rglob("*")) if path.is_file()]
RULES = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())
ALERTS = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"]}
PAGE = (ROOT / "docs" / "alerts.md").read_text()

LIBPQ = {option.envvar.decode() for option in pq.Conninfo.get_defaults() if option.envvar} | {"PGSERVICEFILE"}
# Of programs that run beside or before us.
OTHERS = {
    *("DEBIAN_FRONTEND", "PIP_DISABLE_PIP_VERSION_CHECK", "PIP_NO_CACHE_DIR", "PIP_ROOT_USER_ACTION"),
    *(
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONUNBUFFERED",
        "PYSPARK_PYTHON",
        "XDG_CACHE_HOME",
        "SPARK_LOCAL_DIRS",
        "SPARK_LOCAL_IP",
    ),
    *("EXECUTOR_IMAGE", "POD_IP", "POD_NAME", "POD_NAMESPACE"),
}
OTHERS_OF_SPARK = re.compile(
    r"SPARK_(PACKAGES|CLASSPATH|DRIVER_URL|JAVA_OPT_\d?|APPLICATION_ID|RESOURCE_PROFILE_ID)"
    r"|SPARK_EXECUTOR_(CORES|ID|MEMORY|POD_IP|POD_NAME)"
)
# Words of Terraform and SQL, not variables.
WORDS = {"ON_DEMAND", "ON_ERROR_STOP"}


def _settings() -> set[str]:
    def fields() -> Iterator[FieldInfo]:
        for root in (CaptureSettings, ShapesSettings):
            for group in root.model_fields.values():
                yield from group.annotation.model_fields.values()  # type: ignore[union-attr]

    return {str(field.validation_alias) for field in fields()}


def _series(metrics: ServiceMetrics) -> set[str]:
    """Every name that Prometheus stores."""
    names = set()
    for family in metrics.registry.collect():
        kinds = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}
        names |= {family.name + suffix for suffix in kinds.get(family.type, ("",))}
    return names


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(DEPLOY)))
def test_every_variable_that_is_named_exists(file: Path) -> None:
    named = set(re.findall(r"\b(?:[A-Z][A-Z0-9]*_[A-Z0-9_]+|PG[A-Z]{3,})\b", file.read_text()))
    unknown = named - _settings() - LIBPQ - OTHERS - WORDS
    assert {name for name in unknown if OTHERS_OF_SPARK.fullmatch(name) is None} == set()


def test_the_settings_of_the_manifests_were_seen() -> None:
    """That the test above can fail: it finds what is there."""
    deployment = (DEPLOY / "kubernetes" / "base" / "capture" / "kustomization.yaml").read_text()
    assert len(_settings() & set(re.findall(r"[A-Z_]+", deployment))) >= 5


@pytest.mark.parametrize("place", ["prometheus", "grafana"])
def test_every_metric_that_is_named_exists(place: str) -> None:
    known = _series(CaptureMetrics()) | _series(ShapesMetrics())
    text = "".join(file.read_text() for file in FILES if file.is_relative_to(DEPLOY / place))
    named = set(re.findall(r"\b(?:penstock|process)_[a-z_]+\b", text))
    assert len(named) > 15
    assert named - known == set()


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_leads_to_its_paragraph(alert: str) -> None:
    rule = ALERTS[alert]
    assert rule["labels"]["severity"] in ("warning", "critical")
    url, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert url.endswith("/docs/alerts.md")
    assert anchor == alert.lower()
    paragraph = PAGE.partition(f"### {alert}\n")[2].partition("\n#")[0]
    assert "Do:" in paragraph


def test_every_paragraph_is_of_an_alert() -> None:
    assert set(re.findall(r"^### (\w+)$", PAGE, re.MULTILINE)) == set(ALERTS)


def test_links_within_the_page_lead_somewhere() -> None:
    headings = {heading.lower() for heading in re.findall(r"^### (\w+)$", PAGE, re.MULTILINE)}
    assert set(re.findall(r"\]\(#(\w+)\)", PAGE)) <= headings


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(DEPLOY)))
def test_no_registry_is_named(file: Path) -> None:
    images = re.findall(
        r"^\s*(?:image|newName):\s*(\S+)|^(?:FROM|ARG BASE=)\s*(\S+)", file.read_text(), re.MULTILINE
    )
    for image in (name for pair in images for name in pair if name):
        assert "." not in image.partition("/")[0], f"{image} is of a registry"

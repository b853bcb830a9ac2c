"""deploy/prometheus and deploy/grafana: promtool reads every expression and plays every rule's tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.programs import DEPLOY, promtool, run

RULES = DEPLOY / "prometheus" / "rules.yml"
TESTS = sorted((DEPLOY / "prometheus" / "tests").glob("*.yml"))
DASHBOARD = json.loads((DEPLOY / "grafana" / "penstock.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]


def test_the_rules_hold_their_tests() -> None:
    run(promtool(), "check", "rules", RULES)
    run(promtool(), "test", "rules", *TESTS)


def test_each_alert_is_seen_to_fire_and_not_to() -> None:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    alerts = {rule["alert"] for group in groups for rule in group["rules"]}
    checks = [
        check
        for file in TESTS
        for test in yaml.safe_load(file.read_text())["tests"]
        for check in test["alert_rule_test"]
    ]
    assert {check["alertname"] for check in checks if check["exp_alerts"]} == alerts
    assert {check["alertname"] for check in checks if not check["exp_alerts"]} == alerts


def test_a_rule_that_is_wrong_fails_its_tests(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "rules.yml").write_text(
        RULES.read_text().replace("penstock_slot_lost) == 1", "penstock_slot_lost) == 2")
    )
    [of_the_slot] = [file for file in TESTS if file.name == "slot.yml"]
    (tmp_path / "tests" / "slot.yml").write_text(of_the_slot.read_text())
    with pytest.raises(AssertionError, match="PenstockSlotLost"):
        run(promtool(), "test", "rules", tmp_path / "tests" / "slot.yml")


def test_the_expressions_of_the_dashboard_are_promql(tmp_path: Path) -> None:
    expressions = [target["expr"] for panel in PANELS for target in panel.get("targets", [])]
    assert len(expressions) > 20
    plain = [each.replace("$__rate_interval", "5m").replace("$job", ".*") for each in expressions]
    assert not [each for each in plain if "$" in each]
    rules = [{"record": f"panel:{number}", "expr": each} for number, each in enumerate(plain)]
    file = tmp_path / "panels.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    run(promtool(), "check", "rules", file)


def test_panels_have_their_own_places_and_say_what_they_show() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["type"] == "row" or panel["description"]

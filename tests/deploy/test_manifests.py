"""deploy/kubernetes: rendered as an operator would, held against the API's schemas and our settings."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from penstock.settings.kinds import MIB
from penstock.settings.loading import load_capture_settings, load_shapes_settings
from penstock.shapes.definition.shapes_file import load_shapes_file
from tests.deploy.programs import DEPLOY, RENDERED, kustomize

Manifest = dict[str, Any]

VERSIONS = ("1.29", "1.37")
"""The oldest and the newest Kubernetes that we promise to fit."""
REST_MIB = 90
"""Of capture, without anything in flight (docs/benchmarks.md)."""

SECRETS = ("OPS_TOKEN", "PGPASSWORD", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
"""Variables whose values are nobody's business; OPS_TOKEN_FILE names a file."""

rendered = cache(kustomize)


def _of_kind(directory: str, *kinds: str) -> list[Manifest]:
    return [each for each in rendered(directory) if each["kind"] in kinds]


def _workloads(directory: str) -> list[Manifest]:
    found = _of_kind(directory, "Deployment", "StatefulSet")
    assert found
    return found


def _executor() -> Manifest:
    template = DEPLOY / "kubernetes" / "overlays" / "spark-on-kubernetes" / "executor.yaml"
    pod: Manifest = yaml.safe_load(template.read_text())
    return pod


def _pods() -> Iterator[Manifest]:
    """What runs: each workload's pod, and an executor's."""
    for directory in RENDERED:
        yield from (each["spec"]["template"] for each in _workloads(directory))
    yield _executor()


def _variables(directory: str, workload: Manifest) -> dict[str, str]:
    """What a workload's container gets by its config maps."""
    maps = {each["metadata"]["name"]: each["data"] for each in _of_kind(directory, "ConfigMap")}
    [container] = workload["spec"]["template"]["spec"]["containers"]
    return {
        name: value
        for each in container["envFrom"]
        for name, value in maps[each["configMapRef"]["name"]].items()
    }


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("directory", RENDERED)
def test_fits_the_schemas_of_the_api(directory: str, version: str) -> None:
    for each in rendered(directory):
        kubernetes_validate.validate(each, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_executor_fits_them_too(version: str) -> None:
    kubernetes_validate.validate(_executor(), version, strict=True)


def test_an_unknown_field_does_not_fit() -> None:
    [workload] = _workloads("base/capture")
    wrong = copy.deepcopy(workload)
    wrong["spec"]["template"]["spec"]["containers"][0]["securityContext"]["readOnlyRootFileSystem"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("directory", RENDERED)
def test_each_selector_selects_the_pods_of_one_workload(directory: str) -> None:
    """An empty one would select every pod of the namespace."""
    pods = [each["spec"]["template"]["metadata"]["labels"] for each in _workloads(directory)]
    pods.append(_executor()["metadata"]["labels"])
    for each in _of_kind(
        directory, "Service", "NetworkPolicy", "PodDisruptionBudget", "Deployment", "StatefulSet"
    ):
        spec = each["spec"]
        selector = spec.get("podSelector") or spec["selector"]
        wanted = selector.get("matchLabels", selector).items()
        assert wanted
        assert sum(wanted <= labels.items() for labels in pods) == 1, each["metadata"]["name"]


@pytest.mark.parametrize("directory", RENDERED)
def test_a_workload_is_two_on_two_nodes_and_watched(directory: str) -> None:
    for workload in _workloads(directory):
        spec = workload["spec"]["template"]["spec"]
        [container] = spec["containers"]
        assert workload["spec"]["replicas"] == 2
        [rule] = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert rule["topologyKey"] == "kubernetes.io/hostname"
        assert rule["labelSelector"]["matchLabels"] == workload["spec"]["selector"]["matchLabels"]
        probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
        assert {name: probe["path"] for name, probe in probes.items()} == {
            "startup": "/livez",
            "liveness": "/livez",
            "readiness": "/readyz",
        }
        [port] = [each["containerPort"] for each in container["ports"] if each["name"] == "ops"]
        assert str(port) == _variables(directory, workload)["OPS_PORT"]
        assert {probe["port"] for probe in probes.values()} == {"ops"}


def test_nobody_is_root_or_writes_to_the_root_file_system() -> None:
    for pod in _pods():
        context = pod["spec"]["securityContext"]
        assert (context["runAsNonRoot"], context["runAsUser"]) == (True, 10001)
        [container] = pod["spec"]["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "/tmp" in [mount["mountPath"] for mount in container["volumeMounts"]]


def test_secrets_are_mounted_and_nowhere_written_down() -> None:
    for directory in RENDERED:
        assert _of_kind(directory, "Secret") == []
        for workload in _workloads(directory):
            assert not {"PGPASSWORD", "OPS_TOKEN"} & _variables(directory, workload).keys()
    for pod in _pods():
        files = {
            volume["name"]: volume["secret"]["defaultMode"]
            for volume in pod["spec"]["volumes"]
            if "secret" in volume
        }
        # 0440: for our group, which fsGroup gives to the files.
        assert files
        assert set(files.values()) == {0o440}


@pytest.mark.parametrize("directory", RENDERED)
def test_the_variables_are_good_settings(directory: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123456789abcdef")
    for workload in _workloads(directory):
        variables = _variables(directory, workload) | {"OPS_TOKEN_FILE": str(token)}
        is_capture = workload["metadata"]["name"] == "penstock-capture"
        grace_s = workload["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        [container] = workload["spec"]["template"]["spec"]["containers"]
        limit_mib = _mib(container["resources"]["limits"]["memory"])
        if is_capture:
            capture = load_capture_settings(variables, dotenv=None)
            assert capture.warnings() == []
            assert grace_s > capture.leader.shutdown_drain_s + 1
            assert limit_mib >= REST_MIB + 2 * capture.inflight.max_bytes / MIB
        else:
            shapes = load_shapes_settings(variables, dotenv=None)
            assert grace_s > shapes.leader.shutdown_drain_s + 1
            assert _log_volume_mib(directory, workload) * MIB > shapes.change_log.max_bytes * 1.5
        assert "cpu" not in container["resources"]["limits"], "a throttled leader looks like a frozen one"


def _mib(quantity: str) -> int:
    number, unit = re.fullmatch(r"(\d+)(Mi|Gi)", quantity).groups()  # type: ignore[union-attr]
    return int(number) * (1024 if unit == "Gi" else 1)


def _log_volume_mib(directory: str, workload: Manifest) -> int:
    claims = workload["spec"].get("volumeClaimTemplates") or _of_kind(directory, "PersistentVolumeClaim")
    [claim] = claims
    return _mib(claim["spec"]["resources"]["requests"]["storage"])


@pytest.mark.parametrize("directory", RENDERED)
def test_shapes_find_their_log_and_their_file_where_they_are_mounted(directory: str) -> None:
    for workload in _workloads(directory):
        if workload["metadata"]["name"] != "penstock-shapes":
            continue
        [container] = workload["spec"]["template"]["spec"]["containers"]
        places = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        variables = _variables(directory, workload)
        assert variables["LOG_DIR"] == places["log"]
        assert Path(variables["OPS_TOKEN_FILE"]).parent == Path(places["ops"])
        assert Path(variables["PGSERVICEFILE"]).parent == Path(places["postgres"])
        assert any(f"{places['shapes']}/shapes.toml" in argument for argument in container["args"])


def test_executors_see_what_the_driver_sees() -> None:
    directory = "overlays/spark-on-kubernetes"
    [workload] = _workloads(directory)
    [driver], [executor] = (
        workload["spec"]["template"]["spec"]["containers"],
        _executor()["spec"]["containers"],
    )
    ours = {mount["name"]: mount["mountPath"] for mount in driver["volumeMounts"]}
    theirs = {mount["name"]: mount["mountPath"] for mount in executor["volumeMounts"]}
    assert theirs.items() <= ours.items()
    said = {each["name"]: each["value"] for each in executor["env"]}
    assert said.items() <= _variables(directory, workload).items()
    variables = {each["name"]: each.get("value") for each in driver["env"]}
    assert variables["EXECUTOR_IMAGE"] == driver["image"]
    command = DEPLOY / executor["command"][0]
    assert os.access(command, os.X_OK)


@pytest.mark.parametrize("directory", RENDERED)
def test_the_arguments_are_commands_of_ours(directory: str, tmp_path: Path) -> None:
    for workload in _workloads(directory):
        [container] = workload["spec"]["template"]["spec"]["containers"]
        environ = {"PATH": os.environ["PATH"]}
        done = subprocess.run(
            [sys.executable, "-m", "penstock", *container["args"]],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        # It goes as far as to miss what only the cluster has.
        assert done.returncode == 2
        assert "--help" not in done.stderr
        assert re.search(r"AWS_REGION is not set|/etc/penstock/shapes/shapes.toml", done.stderr), done.stderr


@pytest.mark.parametrize("directory", RENDERED)
def test_the_shapes_files_are_good(directory: str, tmp_path: Path) -> None:
    for each in _of_kind(directory, "ConfigMap"):
        if "shapes.toml" in each["data"]:
            file = tmp_path / "shapes.toml"
            file.write_text(each["data"]["shapes.toml"])
            assert load_shapes_file(file).shapes


@pytest.mark.parametrize("directory", RENDERED)
def test_no_secret_is_in_a_rendering(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one of whoever renders it, nor one of ours: secrets are mounted, and made by the operator."""
    planted = {name: f"planted-{name.lower()}-4d" for name in SECRETS}
    for name, value in planted.items():
        monkeypatch.setenv(name, value)

    manifests = kustomize(directory)

    assert not [each for each in manifests if each["kind"] == "Secret"]
    text = yaml.safe_dump_all(manifests)
    assert not [value for value in planted.values() if value in text]
    literal = re.compile(rf"^\W*(?:name: )?({'|'.join(SECRETS)})\b.*$", re.MULTILINE)
    assert literal.findall(text) == []

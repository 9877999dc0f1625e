"""What is shipped for Kubernetes: valid to the last field, closed where it can be, in step with weft's own flags."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from serving.cli import build_parser
from serving.commands.api_key_flag import API_KEY_VARIABLE
from serving.commands.deployment_flags import deployment_from
from serving.config import load_deployment
from serving.gateway.identity import check_exposure
from sharding.chips import CHIPS
from sharding.topology import parse_topology

FOLDER = Path(__file__).parents[3] / "configs" / "kubernetes"
SCHEMAS = json.loads((Path(__file__).parent / "schemas.json").read_text())
FILES = sorted(FOLDER.glob("*.yaml"))
ENDS_AFTER_DRAIN = 5 + 10  # seconds: an API process that hangs, then the engine
# What Kubernetes puts in the place of $(NAME), as in a group of two.
EXPANDED = {"LWS_GROUP_SIZE": "2", "LWS_LEADER_ADDRESS": "weft-0.weft", "LWS_WORKER_INDEX": "1", "POD_IP": "10.0.0.1"}


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def check(document: dict[str, Any]) -> None:
    schema = {"$ref": f"#/$defs/{document['kind']}", "$defs": SCHEMAS["$defs"]}
    jsonschema.Draft202012Validator(schema).validate(document)


def pods(path: Path) -> list[dict[str, Any]]:
    """The spec of each kind of pod, the one that serves first."""
    found = []
    for document in documents(path):
        if document["kind"] == "Deployment":
            found.append(document["spec"]["template"]["spec"])
        if document["kind"] == "LeaderWorkerSet":
            template = document["spec"]["leaderWorkerTemplate"]
            found += [template["leaderTemplate"]["spec"], template["workerTemplate"]["spec"]]
    return found


ALL = [pytest.param(path, id=path.stem) for path in FILES]
CONTAINERS = [
    pytest.param(pod, pod["containers"][0], id=f"{path.stem}-{i}") for path in FILES for i, pod in enumerate(pods(path))
]


@pytest.mark.parametrize("path", ALL)
def test_every_field_is_one_that_kubernetes_has(path: Path) -> None:
    for document in documents(path):
        check(document)


@pytest.mark.parametrize("path", ALL)
def test_a_field_that_kubernetes_does_not_have_would_be_refused(path: Path) -> None:
    for document in documents(path):
        for at in (("spec",), ("metadata",)):
            wrong = copy.deepcopy(document)
            wrong[at[0]]["readynessProbe"] = {}
            with pytest.raises(jsonschema.ValidationError):
                check(wrong)


def test_a_wrong_field_deep_in_a_follower_would_be_refused() -> None:
    (group,) = (d for d in documents(FOLDER / "several-hosts-gpu.yaml") if d["kind"] == "LeaderWorkerSet")
    wrong = copy.deepcopy(group)
    wrong["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"][0]["imagePullPolcy"] = "Always"
    with pytest.raises(jsonschema.ValidationError, match="imagePullPolcy"):
        check(wrong)


@pytest.mark.parametrize(("pod", "container"), CONTAINERS)
def test_no_pod_is_root_or_writes_where_it_need_not(pod: dict[str, Any], container: dict[str, Any]) -> None:
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert {mount["name"] for mount in mounts.values()} == set(volumes)
    environment = {entry["name"]: entry for entry in container["env"]}
    assert environment["HOME"]["value"] in mounts
    assert mounts["/models"]["readOnly"] is True


@pytest.mark.parametrize(("pod", "container"), CONTAINERS)
def test_no_secret_stands_in_a_manifest(pod: dict[str, Any], container: dict[str, Any]) -> None:
    for entry in container["env"]:
        if re.search("TOKEN|KEY|SECRET", entry["name"]):
            assert set(entry["valueFrom"]) == {"secretKeyRef"}
    assert any(e["name"] == "WEFT_CLUSTER_TOKEN" for e in container["env"]) == ("--processes" in str(container["args"]))


@pytest.mark.parametrize(("pod", "container"), CONTAINERS)
def test_a_pod_is_given_the_time_that_its_drain_takes(pod: dict[str, Any], container: dict[str, Any]) -> None:
    _, before = container["lifecycle"]["preStop"]["exec"]["command"]
    drain = next(float(arg.split("=")[1]) for arg in container["args"] if arg.startswith("--drain-seconds="))
    assert int(before) + drain + ENDS_AFTER_DRAIN <= pod["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("path", ALL)
def test_the_pod_that_serves_is_asked_whether_it_lives_and_whether_it_is_ready(path: Path) -> None:
    first = pods(path)[0]["containers"][0]
    probes = {name: first[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert probes == {
        "startupProbe": "/health/live",
        "livenessProbe": "/health/live",
        "readinessProbe": "/health/ready",
    }
    ports = {port["name"]: port["containerPort"] for port in first["ports"]}
    assert f"--port={ports['http']}" in first["args"]
    for other in pods(path)[1:]:
        assert not {"livenessProbe", "readinessProbe"} & set(other["containers"][0])


@pytest.mark.parametrize("path", ALL)
def test_weft_takes_the_arguments_and_the_devices_are_those_of_the_mesh(path: Path) -> None:
    chips = 0
    for pod in pods(path):
        container = pod["containers"][0]
        chips += sum(count for name, count in container["resources"]["limits"].items() if "/" in name)
        weft, command, file, *flags = container["args"]
        flags = [re.sub(r"\$\((\w+)\)", lambda found: EXPANDED[found[1]], flag) for flag in flags]
        shipped = FOLDER.parent / "deployments" / Path(file).name
        args = build_parser(command).parse_args([command, str(shipped), *flags])
        assert weft == "weft"
        deployment_from(args)
        topology = load_deployment(shipped).plan.topology
    assert topology is not None
    assert chips == parse_topology(topology).count
    assert parse_topology(topology).chip in CHIPS.values()


@pytest.mark.parametrize("path", ALL)
def test_weft_serve_is_told_who_may_ask_and_starts(path: Path) -> None:
    container = pods(path)[0]["containers"][0]
    _, command, file, *flags = container["args"]
    flags = [re.sub(r"\$\((\w+)\)", lambda found: EXPANDED[found[1]], flag) for flag in flags]
    args = build_parser(command).parse_args([command, str(FOLDER.parent / "deployments" / Path(file).name), *flags])
    deployment = deployment_from(args)
    environment = {entry["name"] for entry in container["env"]}
    check_exposure(deployment.access, "a key" if API_KEY_VARIABLE in environment else None, deployment.server.host)


@pytest.mark.parametrize("path", ALL)
def test_the_service_leads_to_the_pod_that_serves(path: Path) -> None:
    by_kind = {document["kind"]: document for document in documents(path)}
    selector = by_kind["Service"]["spec"]["selector"]
    if "Deployment" in by_kind:
        assert selector == by_kind["Deployment"]["spec"]["template"]["metadata"]["labels"]
        return
    group = by_kind["LeaderWorkerSet"]
    labels = group["spec"]["leaderWorkerTemplate"]["leaderTemplate"]["metadata"]["labels"]
    assert selector == {"leaderworkerset.sigs.k8s.io/name": group["metadata"]["name"], **labels}
    assert labels != group["spec"]["leaderWorkerTemplate"]["workerTemplate"]["metadata"]["labels"]

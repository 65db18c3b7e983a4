"""The files for one pod without an operator: valid, strictly; they agree with the image, the program and KubeRay's."""

import os

import pytest
import typer.main
import yaml

from service.cli.main import app
from service.settings.settings import Settings
from tests.deploy.dockerfile import read
from tests.deploy.kubernetes import KUBERAY, ROOT, build, find, problems

FOLDER = ROOT / "deploy" / "kubernetes"
OVERLAYS = ("cpu-demo", "gpu")
PLAIN = [FOLDER / "cpu-demo" / f"{name}.yaml" for name in ("deployment", "service", "networkpolicy")]


def pod_of(overlay):
    """The pod's specification and its one container."""
    pod = find(build(FOLDER / overlay), "Deployment")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    return pod, container


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_document_is_valid(overlay):
    documents = build(FOLDER / overlay)
    assert {entry["kind"] for entry in documents} >= {"Deployment", "Service", "NetworkPolicy"}
    assert {entry["metadata"]["name"]: problems(entry) for entry in documents if problems(entry)} == {}
    assert "Secret" not in {entry["kind"] for entry in documents}


@pytest.mark.parametrize("path", [*PLAIN, FOLDER / "gpu" / "model-cache.yaml"], ids=lambda path: path.name)
def test_files_are_valid_before_kustomize_too(path):
    assert [problems(document) for document in yaml.safe_load_all(path.read_text())] == [[]]


@pytest.mark.parametrize(("overlay", "tag", "device"), [("cpu-demo", "cpu", "cpu"), ("gpu", "cuda", "cuda")])
def test_the_container_is_the_image_and_runs_the_program(overlay, tag, device):
    pod, container = pod_of(overlay)
    assert container["image"] == f"mrp-serve:{tag}"
    assert [str(pod["securityContext"]["runAsUser"])] == read()["runtime"].all("USER")
    assert pod["enableServiceLinks"] is False, "MRP_SERVE_PORT=tcp://… would be a setting"
    serve = typer.main.get_group(app).commands["serve"]
    words = serve.make_context("serve", container["args"][1:]).params
    assert (container["args"][0], words["device"]) == ("serve", device)


def test_a_gpu_is_asked_for_and_one_pod_runs():
    _, container = pod_of("gpu")
    assert {container["resources"][kind]["nvidia.com/gpu"] for kind in ("requests", "limits")} == {"1"}
    assert "nvidia.com/gpu" not in str(pod_of("cpu-demo"))
    specification = find(build(FOLDER / "gpu"), "Deployment")["spec"]
    assert specification["strategy"] == {"type": "Recreate"}, "a second pod would wait for the first one's GPU"
    assert specification["replicas"] == 1


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_pod_ends_after_its_requests(overlay):
    pod, container = pod_of(overlay)
    command, pause_s = container["lifecycle"]["preStop"]["exec"]["command"]
    assert command == "sleep"
    assert pod["terminationGracePeriodSeconds"] > int(pause_s) + Settings().drain_timeout_s + 15


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_probes_ask_for_the_process_and_for_an_answer(overlay):
    _, container = pod_of(overlay)
    paths = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {name: get["path"] for name, get in paths.items()} == {
        "startup": "/live", "liveness": "/live", "readiness": "/health"
    }  # fmt: skip
    [port] = container["ports"]
    assert {get["port"] for get in paths.values()} == {port["name"]}
    assert port["containerPort"] == Settings().port
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] > 600, "the patience of the program"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_pod_is_as_restricted_as_those_of_kuberay(overlay):
    pod, container = pod_of(overlay)
    group = find(build("overlays/cpu-demo"), "RayService")["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]
    worker = group["template"]["spec"]
    assert pod["securityContext"] == worker["securityContext"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["imagePullSecrets"] == worker["imagePullSecrets"]
    assert container["securityContext"] == worker["containers"][0]["securityContext"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    shared = {mount["name"]: mount["mountPath"] for mount in worker["containers"][0]["volumeMounts"]}
    assert mounts == {**shared, "shm": "/dev/shm"}  # KubeRay adds the last
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes.keys() == mounts.keys()
    assert volumes["api-keys"] == next(volume for volume in worker["volumes"] if volume["name"] == "api-keys")
    [keys] = [entry["value"] for entry in container["env"] if entry["name"] == "MRP_SERVE_API_KEYS_FILE"]
    assert keys == f"{mounts['api-keys']}/keys.yaml"
    disk = [volume["emptyDir"] for volume in pod["volumes"] if "medium" not in volume.get("emptyDir", {"medium": ""})]
    limit = container["resources"]["limits"]["ephemeral-storage"]
    assert sum(int(entry["sizeLimit"].removesuffix("Gi")) for entry in disk) <= int(limit.removesuffix("Gi"))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_service_and_policies_find_the_pod_and_only_the_gpu_overlay_reaches_the_hub(overlay):
    documents = build(FOLDER / overlay)
    labels = find(documents, "Deployment")["spec"]["template"]["metadata"]["labels"]
    service = find(documents, "Service")["spec"]
    assert service["selector"].items() <= labels.items()
    assert [(port["port"], port["targetPort"]) for port in service["ports"]] == [(8000, "serve")]
    policies = [entry["spec"] for entry in documents if entry["kind"] == "NetworkPolicy"]
    assert all(policy["podSelector"]["matchLabels"].items() <= labels.items() for policy in policies)
    ports = [
        [port["port"] for rule in policy.get(way, ()) for port in rule["ports"]]
        for way in ("ingress", "egress")
        for policy in policies
    ]
    assert sorted(filter(None, ports)) == ([[53, 53], [443], [8000]] if overlay == "gpu" else [[53, 53], [8000]])


def test_the_components_of_kuberay_fit(tmp_path):
    """The monitor finds the Service, and the route leads to it."""
    names = ("monitoring", "route")
    components = [os.path.relpath(KUBERAY / "components" / name, tmp_path) for name in names]
    kustomization = {"resources": [os.path.relpath(FOLDER / "gpu", tmp_path)], "components": components}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    documents = build(tmp_path)
    service = find(documents, "Service")
    monitor = find(documents, "ServiceMonitor")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    [port] = service["spec"]["ports"]
    assert [entry["port"] for entry in monitor["endpoints"]] == [port["name"]]
    [rule] = find(documents, "HTTPRoute")["spec"]["rules"]
    assert rule["backendRefs"] == [{"name": service["metadata"]["name"], "port": port["port"]}]

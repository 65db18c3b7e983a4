"""The Kubernetes files: valid, strictly; they agree with the image, the program and each other."""

import base64
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ray.serve._private.constants import PROXY_MIN_DRAINING_PERIOD_S
from ray.serve.schema import ServeDeploySchema

from service import app
from service.admission.keys import KeyRing
from service.cli import cluster as program
from service.settings.settings import Settings
from tests.deploy.dockerfile import read
from tests.deploy.kubernetes import KUBERAY, ROOT, build, find, problems
from tests.rayserve.built import deployments

OVERLAYS = ("overlays/cpu-demo", "overlays/gpu", "overlays/gpu-pair")
PLAIN = sorted(path for path in KUBERAY.rglob("*.yaml") if path.name not in {"kustomization.yaml", "rayservice.yaml"})


def cluster(documents):
    return find(documents, "RayService")["spec"]["rayClusterConfig"]


def containers(documents):
    """The head's and the workers' Ray containers."""
    return [pod["containers"][0] for pod in pods_of(documents)]


def pods_of(documents):
    """The head's and the workers' pods."""
    spec = cluster(documents)
    return [group["template"]["spec"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]


def mappings(node):
    """Every mapping in a document."""
    if isinstance(node, dict):
        yield node
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from mappings(child)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_document_is_valid(overlay):
    documents = build(overlay)
    assert {entry["kind"] for entry in documents} >= {"RayService", "NetworkPolicy", "PodDisruptionBudget"}
    assert {entry["metadata"]["name"]: problems(entry) for entry in documents if problems(entry)} == {}


@pytest.mark.parametrize("path", [*PLAIN, KUBERAY / "base" / "rayservice.yaml"], ids=lambda path: path.name)
def test_files_are_valid_before_kustomize_too(path):
    for document in yaml.safe_load_all(path.read_text()):
        assert problems(document) == []


# --- what they say ---------------------------------------------------------------------------------


@pytest.mark.parametrize("overlay", ["base/rayservice.yaml", *OVERLAYS])
def test_the_serve_config_inside_is_valid_and_builds_the_application(overlay):
    if overlay.endswith(".yaml"):
        document = yaml.safe_load((KUBERAY / overlay).read_text())
    else:
        document = find(build(overlay), "RayService")
    config = ServeDeploySchema.model_validate(yaml.safe_load(document["spec"]["serveConfigV2"]))
    assert config.http_options.host == "0.0.0.0"
    [application] = config.applications
    assert application.import_path == "service.app:build"
    names = {deployment.name for deployment in deployments(app.build(Settings(**application.args)))}
    assert {deployment.name for deployment in application.deployments} <= names


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_node_has_the_environment_of_the_program(overlay):
    """A Service `mrp-serve` would be MRP_SERVE_PORT=tcp://… in every pod, and no replica would start."""
    assert all(pod["enableServiceLinks"] is False for pod in pods_of(build(overlay)))
    operators = {"RAY_AUTH_MODE": cluster(build(overlay))["authOptions"]["mode"]}  # set by KubeRay, with the token
    for container in containers(build(overlay)):
        values = {entry["name"]: entry.get("value") for entry in container["env"]}
        assert len(values) == len(container["env"]), "a variable stands twice"
        assert (values | operators).items() >= program.ENVIRONMENT.items()
        assert values["RAY_LOG_TO_STDERR"] == "1", "kubectl logs"


@pytest.mark.parametrize(("overlay", "tag"), [(OVERLAYS[0], "cpu"), (OVERLAYS[1], "cuda"), (OVERLAYS[2], "cuda")])
def test_the_image_is_ours_and_so_is_its_user(overlay, tag):
    assert [entry["image"] for entry in containers(build(overlay))] == [f"mrp-serve:{tag}"] * 2
    [user] = read()["runtime"].all("USER")
    assert {str(pod["securityContext"]["runAsUser"]) for pod in pods_of(build(overlay))} == {user}
    [mount] = [entry for entry in containers(build(overlay))[1]["volumeMounts"] if entry["name"] == "model-cache"]
    assert f"VOLUME {mount['mountPath']}" in (ROOT / "Dockerfile").read_text()


def test_the_ray_version_is_the_one_in_the_image():
    [pinned] = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("ray==")]
    for overlay in OVERLAYS:
        assert f"ray=={cluster(build(overlay))['rayVersion']}" == pinned


@pytest.mark.parametrize(("overlay", "gpus"), [("overlays/gpu", 1), ("overlays/gpu-pair", 2)])
def test_a_workers_gpus_are_those_of_one_replica_and_none_is_on_the_head(overlay, gpus):
    head, worker = containers(build(overlay))
    for kind in ("requests", "limits"):
        assert worker["resources"][kind]["nvidia.com/gpu"] == str(gpus)
    assert "nvidia.com/gpu" not in str(head["resources"])
    config = yaml.safe_load(find(build(overlay), "RayService")["spec"]["serveConfigV2"])
    settings = Settings(**config["applications"][0]["args"])
    generator, _ = deployments(app.build(settings))
    assert generator.ray_actor_options["num_gpus"] == settings.tensor_parallel_size == gpus
    assert generator.ray_actor_options["num_cpus"] <= int(worker["resources"]["requests"]["cpu"])
    [group] = cluster(build(overlay))["workerGroupSpecs"]
    assert group["minReplicas"] == settings.num_replicas <= group["maxReplicas"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_worker_is_ready_when_the_model_answers(overlay):
    worker = containers(build(overlay))[1]
    probe = worker["readinessProbe"]
    [serving] = [port["containerPort"] for port in worker["ports"] if port["name"] == "serve"]
    assert probe["httpGet"] == {"path": "/health", "port": serving}
    slowest_s = probe["failureThreshold"] * (probe["periodSeconds"] + probe["timeoutSeconds"])
    assert slowest_s < PROXY_MIN_DRAINING_PERIOD_S, "the port of a proxy that drains closes before it is noticed"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_selectors_find_the_pods_and_only_port_8000_is_for_everybody(overlay):
    documents = build(overlay)
    spec = cluster(documents)
    labels = spec["workerGroupSpecs"][0]["template"]["metadata"]["labels"]
    worker = {**labels, "ray.io/node-type": "worker"}  # KubeRay adds the second
    assert find(documents, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"].items() <= worker.items()
    head = {**spec["headGroupSpec"]["template"]["metadata"]["labels"], "ray.io/node-type": "head"}
    for_everybody = [
        (policy["podSelector"]["matchLabels"], port["port"])
        for policy in policies(documents)
        for rule in policy.get("ingress", ())
        if "from" not in rule
        for port in rule["ports"]
    ]
    assert for_everybody == [({"app": "mrp-serve", "ray.io/node-type": "worker"}, 8000)]
    for pod in (head, worker):
        kinds = {kind for entry in policies(documents) if selects(entry, pod) for kind in entry["policyTypes"]}
        assert kinds == {"Ingress", "Egress"}, "what no policy names is forbidden"


def policies(documents):
    """The rules of every NetworkPolicy."""
    return [entry["spec"] for entry in documents if entry["kind"] == "NetworkPolicy"]


def selects(policy, labels):
    """Whether a policy is about pods with these labels."""
    return policy["podSelector"]["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_policies_name_namespaces_and_leave_no_way_out_but_dns_the_api_and_the_hub(overlay):
    """Any namespace may give its pods the labels of an operator."""
    peers = [entry for entry in mappings(list(policies(build(overlay)))) if "namespaceSelector" in entry]
    assert peers
    assert all(entry["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] for entry in peers)
    head, worker = ({"app": "mrp-serve", "ray.io/node-type": kind} for kind in ("head", "worker"))
    assert ways_out(overlay, head) - ways_out(overlay, worker) == {("anywhere", 443), ("anywhere", 6443)}
    hub = {(f"{cidr}/0", 443) for cidr in ("0.0.0.0", "::")} if overlay != "overlays/cpu-demo" else set()
    assert {way for way in ways_out(overlay, worker) if way[1] not in {None, 53, 6379}} == hub
    redis = find(build("overlays/gpu"), "NetworkPolicy", "mrp-serve-redis")["spec"]
    assert "Egress" in redis["policyTypes"]
    assert "egress" not in redis


def ways_out(overlay, pod):
    """(whereto, port) of the connections that a pod may open; port None: all."""
    rules = [rule for entry in policies(build(overlay)) if selects(entry, pod) for rule in entry.get("egress", ())]
    return {
        (peer.get("ipBlock", {}).get("cidr") or str(peer) if peer else "anywhere", port["port"])
        for rule in rules
        for peer in rule.get("to", [None])
        for port in rule.get("ports", [{"port": None}])
    }


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_nothing_writes_but_into_volumes_and_only_the_autoscaler_asks_kubernetes(overlay):
    documents = build(overlay)
    spec = cluster(documents)
    sets = [
        entry["template"]["spec"] for entry in (entry["spec"] for entry in documents if entry["kind"] == "StatefulSet")
    ]
    groups = pods_of(documents)
    for pod in (*groups, *sets):
        assert pod["automountServiceAccountToken"] is False
        assert all(entry["securityContext"]["readOnlyRootFilesystem"] for entry in pod["containers"])
    for pod in groups:
        volumes = {entry["name"] for entry in pod["volumes"]}
        paths = {entry["mountPath"] for entry in pod["containers"][0]["volumeMounts"] if entry["name"] in volumes}
        assert paths == {"/tmp", "/home/mrp", "/cache/huggingface", "/etc/mrp-serve"}
    autoscaler = spec["autoscalerOptions"]
    assert autoscaler["securityContext"]["readOnlyRootFilesystem"]
    [mounted] = [entry["name"] for entry in autoscaler["volumeMounts"] if "serviceaccount" in entry["mountPath"]]
    [volume] = [entry["projected"] for entry in groups[0]["volumes"] if entry["name"] == mounted]
    sources = {key for source in volume["sources"] for key in source}
    assert sources == {"serviceAccountToken", "configMap", "downwardAPI"}
    assert mounted not in str(groups[0]["containers"])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_no_pod_can_fill_the_disk_of_its_node(overlay):
    """Volumes on the node's disk have a size, and a container may write all of them."""
    spec = cluster(build(overlay))
    for pod in pods_of(build(overlay)):
        sizes = [entry["emptyDir"]["sizeLimit"] for entry in pod["volumes"] if "emptyDir" in entry]
        for container in pod["containers"]:
            limit = container["resources"]["limits"]["ephemeral-storage"]
            assert sum(int(size.removesuffix("Gi")) for size in sizes) <= int(limit.removesuffix("Gi"))
    assert "ephemeral-storage" in spec["autoscalerOptions"]["resources"]["limits"]


def test_monitors_find_the_service_and_its_ports():
    documents = build("overlays/gpu")
    service = find(documents, "RayService")["spec"]["serveService"]
    monitor = find(documents, "ServiceMonitor")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert [entry["port"] for entry in monitor["endpoints"]] == [entry["name"] for entry in service["spec"]["ports"]]
    [pods] = find(documents, "PodMonitor")["spec"]["podMetricsEndpoints"]
    for container in containers(documents):
        assert pods["port"] in {port["name"] for port in container["ports"]}


def test_the_dashboard_is_for_grafanas_sidecar_and_a_release_may_label_the_monitors(tmp_path):
    (tmp_path / "kustomization.yaml").write_text(
        yaml.safe_dump(
            {
                "resources": [os.path.relpath(KUBERAY / "overlays" / "gpu", tmp_path)],
                "labels": [{"pairs": {"release": "NAME"}}],
            }
        )
    )
    documents = build(tmp_path)
    board = find(documents, "ConfigMap", "mrp-serve-dashboard")
    assert problems(board) == []
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    [source] = (ROOT / "deploy" / "observe" / "grafana" / "dashboards").glob("*.json")
    assert board["data"] == {source.name: source.read_text()}
    for kind in ("ServiceMonitor", "PodMonitor", "PrometheusRule"):
        assert find(documents, kind)["metadata"]["labels"]["release"] == "NAME"
    assert "NAME" not in str(find(documents, "ServiceMonitor")["spec"])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_node_finds_the_keys(overlay):
    for pod in pods_of(build(overlay)):
        [volume] = [entry["secret"] for entry in pod["volumes"] if entry["name"] == "api-keys"]
        [mount] = [entry for entry in pod["containers"][0]["volumeMounts"] if entry["name"] == "api-keys"]
        [path] = [entry["value"] for entry in pod["containers"][0]["env"] if entry["name"] == "MRP_SERVE_API_KEYS_FILE"]
        assert path == f"{mount['mountPath']}/keys.yaml"
        assert volume == {"secretName": "mrp-serve-api-keys", "defaultMode": 0o440}, "not optional: pods wait for it"


@pytest.mark.parametrize("overlay", OVERLAYS[1:])
def test_the_hubs_token_may_be_missing(overlay):
    for container in containers(build(overlay)):
        [token] = [entry["valueFrom"]["secretKeyRef"] for entry in container["env"] if entry["name"] == "HF_TOKEN"]
        assert token["optional"] is True


def test_the_route_leads_to_the_service_and_only_to_routes_of_clients(tmp_path):
    parts = {name: os.path.relpath(KUBERAY / name, tmp_path) for name in ("overlays/cpu-demo", "components/route")}
    kustomization = {"resources": [parts["overlays/cpu-demo"]], "components": [parts["components/route"]]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    documents = build(tmp_path)
    route = find(documents, "HTTPRoute")
    assert problems(route) == []
    [rule] = route["spec"]["rules"]
    assert [match["path"]["value"] for match in rule["matches"]] == ["/v1", "/generate", "/health"]
    service = find(documents, "RayService")["spec"]["serveService"]
    [port] = service["spec"]["ports"]
    assert rule["backendRefs"] == [{"name": service["metadata"]["name"], "port": port["port"]}]
    assert int(rule["timeouts"]["request"].removesuffix("s")) > Settings().request_timeout_s


def test_no_secret_is_shipped_and_the_guides_commands_make_those_that_are_asked_for(tmp_path):
    documents = [entry for overlay in OVERLAYS for entry in build(overlay)]
    assert not [entry for entry in documents if entry["kind"] == "Secret"]
    references = [entry["secretKeyRef"] for entry in mappings(documents) if "secretKeyRef" in entry]
    requests_ = {("mrp-serve-api-keys", "keys.yaml"), *((entry["name"], entry["key"]) for entry in references)}
    registries = {pod["imagePullSecrets"][0]["name"] for overlay in OVERLAYS for pod in pods_of(build(overlay))}
    requests_ |= {(name, ".dockerconfigjson") for name in registries}
    secrets, output = made_by_the_guide(tmp_path)
    assert {(name, key) for name, data in secrets.items() for key in data} == requests_
    assert len(secrets["mrp-serve-redis"]["password"]) == 64
    (tmp_path / "keys.yaml").write_bytes(secrets["mrp-serve-api-keys"]["keys.yaml"])
    [key] = re.findall(r"^mrp-\S{43}$", output, re.MULTILINE)
    assert KeyRing.load(Settings(api_keys_file=tmp_path / "keys.yaml")).find(key.encode()).name == "me"


def made_by_the_guide(folder):
    """The Secrets that the guide's commands make, run without a cluster, by name; and what the user sees."""
    beginnings = ("docker run --rm mrp-serve:cpu key", "openssl rand", "kubectl create secret")
    lines = [
        f"{line.partition('  #')[0]} {'--dry-run=client -o yaml; echo ---' if 'create secret' in line else ''}"
        for line in map(str.strip, (ROOT / "docs" / "deploy.md").read_text().splitlines())
        if line.startswith(beginnings) and ("|" in line or "kubectl" in line)
    ]
    docker = folder / "docker"
    docker.write_text(f'#!/bin/sh\nshift 3; exec {ROOT}/deploy/entrypoint.sh "$@"\n')
    docker.chmod(0o755)
    path = os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path}
    command = ["bash", "-euo", "pipefail", "-c", "\n".join(lines)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return {
        entry["metadata"]["name"]: {key: base64.b64decode(value) for key, value in entry["data"].items()}
        for entry in yaml.safe_load_all(done.stdout)
        if entry
    }, done.stderr

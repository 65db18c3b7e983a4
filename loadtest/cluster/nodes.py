"""Three Ray nodes on this machine, each with room for one replica of the model, and deploy/serve.yaml on them.

All nodes have the same address, so there is only the proxy of the head.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from loadtest.harness import ROOT, Running, free_port, processes

APPLICATION = "mrp"
_OBJECT_STORE_BYTES = 100 * 2**20


@dataclass(frozen=True)
class Nodes:
    """The cluster and the service on it. The first node is the head."""

    cluster: Any
    nodes: Sequence[Any]
    url: str

    def having(self, part: str) -> list[Any]:
        return [node for node in self.nodes if node.any_processes_alive() and _processes(node, part)]

    def kill(self, node: Any) -> None:
        self.cluster.remove_node(node, allow_graceful=False)


def _processes(node: Any, part: str) -> list[int]:
    [raylet] = node.all_processes["raylet"]
    return processes(Running("", raylet.process.pid), part)


@contextmanager
def deployed(
    arguments: Mapping[str, Any], ingress_on: str = "head", delays: Mapping[str, float] | None = None
) -> Iterator[Nodes]:
    """The service with these settings on three nodes, its ingress on the `head` or on a `worker`.

    `delays`: fields of Serve's `autoscaling_config` (docs/deploy.md).
    """
    from service.cli.cluster import ENVIRONMENT

    os.environ.update({name: value for name, value in ENVIRONMENT.items() if name != "RAY_AUTH_MODE"})
    os.environ |= {"PYTHONPATH": str(ROOT), "MRP_SERVE_TORCH_THREADS": "1"}
    # a separate folder, so that no other `ray.init` finds this cluster
    os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="mrp")
    import ray
    from ray.cluster_utils import Cluster

    common = {"num_cpus": 1, "num_gpus": 0, "object_store_memory": _OBJECT_STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={**common, "resources": {"head": 1}})
    try:
        # before the other nodes: a driver belongs to a node, here to the head, and ends with it
        ray.init(address=cluster.address, log_to_driver=False)
        workers = [cluster.add_node(**common, resources={"worker": 1}) for _ in range(2)]
        cluster.wait_for_nodes()
        url = _deploy(cluster.address, arguments, ingress_on, delays)
        with redirect_stdout(sys.stderr):  # Ray reports dead nodes there; stdout is only for the result
            yield Nodes(cluster, [cluster.head_node, *workers], url)
    finally:
        ray.shutdown()
        cluster.shutdown()
        shutil.rmtree(os.environ["RAY_TMPDIR"], ignore_errors=True)


def _deploy(address: str, arguments: Mapping[str, Any], ingress_on: str, delays: Mapping[str, float] | None) -> str:
    config = yaml.safe_load((ROOT / "deploy" / "serve.yaml").read_text())
    [application] = config["applications"]
    application["args"] |= arguments
    application["deployments"] = [
        {"name": "Ingress", "ray_actor_options": {"num_cpus": 0, "resources": {ingress_on: 0.01}}}
    ]
    if delays:
        scaling = {
            "min_replicas": arguments["num_replicas"],
            "max_replicas": arguments["max_replicas"],
            "initial_replicas": max(1, arguments["num_replicas"]),
            "metrics_interval_s": 1.0,
            "look_back_period_s": 5.0,
            "policy": {"policy_function": "service.hooks:deployment_autoscaling_policy"},
        }
        application["deployments"].append({"name": "Generator", "autoscaling_config": scaling | delays})
    port = free_port()
    config |= {"proxy_location": "HeadOnly", "http_options": {"host": "127.0.0.1", "port": port}}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "serve.yaml"
        path.write_text(yaml.safe_dump(config))
        command = [Path(sys.executable).with_name("serve"), "run", "--address", address, "--non-blocking", str(path)]
        subprocess.run(command, check=True, stdout=sys.stderr, cwd=folder, timeout=300)  # noqa: S603 - Ray's program
    return f"http://127.0.0.1:{port}"


def replicas_by_state() -> dict[str, int]:
    from ray import serve

    application = serve.status().applications.get(APPLICATION)
    deployment = application and application.deployments.get("Generator")
    return {str(state): count for state, count in deployment.replica_states.items() if count} if deployment else {}


def wait_until(condition: Any, what: str, timeout_s: float = 180.0) -> float:
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > timeout_s:
            raise SystemExit(f"{what}: not within {timeout_s:.0f} s")
        time.sleep(0.1)
    return time.monotonic() - began

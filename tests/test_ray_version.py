"""Undocumented behaviour of Ray on which the service relies. A new minor version of Ray may change it.

pyproject.toml allows one minor version. These tests say what to look at before it is raised.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import Mock

import pytest
import ray
from packaging.requirements import Requirement
from packaging.version import Version
from ray._private import ray_constants
from ray.serve._private import deployment_state
from ray.serve._private.common import DeploymentID, ReplicaID
from ray.serve._private.proxy_request_response import ASGIProxyRequest
from ray.serve.schema import ApplicationStatus, ReplicaState
from ray.serve.schema import ServeInstanceDetails as Details

from service.cli import cluster, ray_start, readiness
from service.rayserve import serve_state
from service.rayserve.scaling import GENERATOR
from training import workers

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(ray.__file__).parent

#: variable -> the module of Ray that reads it
READ_BY = {
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "ray.serve._private.constants",
    "RAY_USAGE_STATS_ENABLED": "ray._common.usage.usage_constants",
    "RAY_AUTH_MODE": "ray._private.authentication.authentication_token_setup",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "ray._private.ray_constants",
    "RAY_COLOR_PREFIX": "ray._private.worker",
    "RAY_gcs_server_port_wait_time_s": "ray._private.node",
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "ray._private.ray_constants",
    "RAY_agent_register_timeout_ms": "ray._raylet",
    "RAY_worker_register_timeout_seconds": "ray._raylet",
    "RAY_worker_niceness": "ray._raylet",
    "RAY_TRAIN_V2_ENABLED": "ray.train.v2._internal.constants",
    "RAY_TRAIN_METRICS_ENABLED": "ray.train.v2._internal.constants",
}


def test_one_minor_version_is_allowed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = [text for texts in project["optional-dependencies"].values() for text in texts]
    requested = [made for text in project["dependencies"] + extras if (made := Requirement(text)).name == "ray"]
    assert len(requested) == 3
    installed = Version(ray.__version__)
    for requirement in requested:
        assert requirement.specifier.contains(installed)
        assert not requirement.specifier.contains(f"{installed.major}.{installed.minor + 1}.0")


@pytest.mark.parametrize(
    "name",
    sorted(
        name
        for name in {*cluster.ENVIRONMENT, *cluster.PROGRAM_ENVIRONMENT, *ray_start.LIMITS, *workers.ENVIRONMENT}
        if name in READ_BY or not name.startswith("RAY_SERVE_")  # those: the next test
    ),
)
def test_ray_still_reads_every_variable_that_is_set(name: str) -> None:
    module = find_spec(READ_BY[name])
    assert module is not None
    assert module.origin is not None
    assert name.encode() in Path(module.origin).read_bytes()


def test_serve_makes_of_the_variables_what_they_are_set_for() -> None:
    names = [name for name in cluster.ENVIRONMENT if name.startswith("RAY_SERVE_")]
    program = (
        "import json; from ray.serve._private import constants; "
        f"print(json.dumps({{name: getattr(constants, name) for name in {names}}}))"
    )
    environment = {**os.environ, **cluster.ENVIRONMENT}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": True,
        "RAY_SERVE_PROXY_USE_GRPC": True,
        "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": 64 * 2**20,
        "RAY_SERVE_ENABLE_DIRECT_INGRESS": False,
        "RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": True,
        "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "service.hooks:proxy_middleware",
    }


def test_serve_still_says_what_its_messages_are_recognised_by() -> None:
    """The patterns, and the pieces of Serve's text that they are to find."""
    text = " ".join(Path(deployment_state.__file__).read_text("utf-8").split())
    for pattern, message, pieces in (
        (readiness.TRIES_LEFT, "Retrying 2 more time(s). Error:", ("Retrying{", "more time(s)")),
        (readiness.FAILED_STARTS, "failed to start 3 times in a row", ("failed to start ", "times in a row")),
        (
            serve_state.SLOW,
            "that have taken more than 30s to initialize.",
            ("that have taken more than {", "initialize."),
        ),
    ):
        assert pattern.search(message)
        for piece in pieces:
            assert piece in text


def test_serve_still_opens_a_replicas_port_by_the_function_that_keeps_it_on_loopback() -> None:
    [source] = [path.read_text("utf-8") for path in (PACKAGE / "serve" / "_private").glob("replica.py")]
    assert source.count('add_port_to_grpc_server(self._server, "[::]:0")') == 1


def test_serves_proxies_still_tell_their_health_and_their_draining_by_one_path() -> None:
    """/health asks it (`with_proxy_health` in `gateway/http/middleware.py`)."""
    request = ASGIProxyRequest({"type": "http", "path": "/-/healthz"}, Mock(), Mock())
    assert request.is_health_request
    text = (PACKAGE / "serve" / "_private" / "proxy.py").read_text("utf-8")
    assert "if self._is_draining():\n            healthy = False" in text


def test_the_actors_of_replicas_are_named_after_their_deployment() -> None:
    """`service.app` counts them."""
    assert f"#{GENERATOR}#" in ReplicaID("a1", DeploymentID(GENERATOR, "mrp")).to_full_id_str()


def test_private_parts_of_ray_serve_are_used_in_one_module() -> None:
    users = [path.name for path in (ROOT / "service").rglob("*.py") if "serve._private" in path.read_text("utf-8")]
    assert users == ["network.py"]


def test_ray_still_starts_by_the_functions_that_make_its_fixed_limits_longer() -> None:
    """`service/cli/ray_start.py`: the wait for the raylet, and for the ports of its agents."""
    node, start = ((PACKAGE / "_private" / name).read_text("utf-8") for name in ("node.py", "services.py"))
    wait = node.partition("raylet_start_wait_time_s = 30")[2].partition("raise Exception")[0]
    assert "ray._private.services.get_node(" in wait
    assert "except RuntimeError" in wait
    assert re.search(r"gcs_server_port = wait_for_persisted_port\([^)]*timeout_ms=", node)
    assert "ray._private.services.start_raylet(" in node
    for port in ray_start.PORTS:
        assert f"{port}=self._ray_params.{port}" in node
    assert "start_ray_process(\n        command,\n        ray_constants.PROCESS_TYPE_RAYLET," in start
    assert ray_constants.PROCESS_TYPE_RAYLET == "raylet"
    command = start.partition("command = [\n        RAYLET_EXECUTABLE")[2].partition("return process_info")[0]
    assert "dashboard_agent_listen_port" not in command, "Ray passes it on itself now"
    raylet = PACKAGE / "core" / "src" / "ray" / "raylet" / "raylet"
    assert b"dashboard_agent_listen_port" in raylet.read_bytes()


def test_the_states_are_called_as_they_were() -> None:
    assert {"RUNNING", "DEPLOY_FAILED"} <= {status.value for status in ApplicationStatus}
    assert {"RUNNING", "STOPPING"} <= {state.value for state in ReplicaState}
    [application] = (Details.model_fields["applications"].annotation.__args__[1],)
    [deployment] = (application.model_fields["deployments"].annotation.__args__[1],)
    statuses = {status.value for status in deployment.model_fields["status"].annotation}
    assert {"HEALTHY", "UPSCALING", "DOWNSCALING", "DEPLOY_FAILED"} <= statuses

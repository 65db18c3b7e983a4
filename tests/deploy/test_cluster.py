"""The Serve configs on a running Ray cluster with token authentication, sent as `serve deploy` and KubeRay do."""

import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import yaml

from service.cli import cluster as program
from tests.deploy.dockerfile import ROOT
from tests.deploy.kubernetes import build, find
from tests.service.running import DEAD_PROXIES, free_port

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(420)]
BIN = Path(sys.executable).parent
TOKEN = "0123456789abcdef0123456789abcdef"
_START_S = 120


def wait_for(condition, what):
    deadline = time.monotonic() + _START_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.5)


def status_of(url, **options):
    try:
        return httpx.get(url, timeout=60, **options).status_code
    except httpx.TransportError:
        return None


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A head with five CPUs, as Ray counts them, and a key; its environment and dashboard."""
    dashboard = free_port()
    environment = {
        **os.environ,
        **program.ENVIRONMENT,
        **DEAD_PROXIES,
        "PYTHONPATH": str(ROOT),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": TOKEN,
        "MRP_SERVE_API_KEYS": "change-me",
    }
    command = [BIN / "ray", "start", "--head", "--block", "--num-cpus=5", "--num-gpus=0", "--disable-usage-stats"]
    ports = [f"--port={free_port()}", f"--dashboard-port={dashboard}", "--dashboard-host=127.0.0.1"]
    addresses = ["--node-ip-address=127.0.0.1", f"--object-store-memory={200 * 2**20}"]
    log = tmp_path_factory.mktemp("ray") / "log"
    with log.open("w") as file:
        head = subprocess.Popen([*command, *ports, *addresses], env=environment, stdout=file, stderr=file)
    try:
        url = f"http://127.0.0.1:{dashboard}"
        wait_for(lambda: head.poll() is not None or status_of(f"{url}/api/version") is not None, "no dashboard came")
        assert head.poll() is None, log.read_text()
        yield environment, url
    finally:
        head.terminate()
        head.wait(timeout=60)


def configs():
    """The files' Serve configs, one a change of the one before."""
    yield "serve.yaml", yaml.safe_load((ROOT / "deploy" / "serve.yaml").read_text())
    yield "cpu-demo", yaml.safe_load(find(build("overlays/cpu-demo"), "RayService")["spec"]["serveConfigV2"])
    gpu = yaml.safe_load(find(build("overlays/gpu"), "RayService")["spec"]["serveConfigV2"])
    arguments = gpu["applications"][0]["args"]
    arguments |= {"device": "cpu"}  # what stands beside the model is what is tried here
    del arguments["model"]
    yield "gpu", gpu


def test_the_dashboard_refuses_who_has_no_token(cluster):
    _, url = cluster
    assert status_of(f"{url}/api/serve/applications/") == 401
    assert status_of(f"{url}/api/serve/applications/", headers={"authorization": f"Bearer {TOKEN}"}) == 200


def test_the_files_configs_deploy_one_after_the_other(cluster, tmp_path):
    """All but the first are taken over in place, as an upgrade of settings is."""
    environment, url = cluster
    key = {"authorization": "Bearer change-me"}
    for name, config in configs():
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(config))
        done = subprocess.run(
            [BIN / "serve", "deploy", path, "--address", url],
            env={**environment, "no_proxy": "127.0.0.1"}, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        service = f"http://127.0.0.1:{config['http_options']['port']}"
        wanted = config["applications"][0]["args"]["num_replicas"]

        def ready(service=service, wanted=wanted):
            try:
                return httpx.get(f"{service}/health", timeout=10).json().get("replicas_ready") == wanted
            except (httpx.TransportError, ValueError):
                return False

        wait_for(ready, f"{name}: {wanted} replicas did not come")
        body = {"messages": [{"role": "user", "content": "Tom has 5 apples, gets 3, loses 2."}], "mode": "static"}
        assert httpx.post(f"{service}/generate", json=body, timeout=60).status_code == 401
        answer = httpx.post(f"{service}/generate", json=body, headers=key, timeout=60)
        assert answer.status_code == 200
        assert answer.json()["text"].endswith("So Tom has 6 apples.")

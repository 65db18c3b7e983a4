"""A second service, of two ingresses: what it listens on, whose process has what, and how it ends.

In time for requests that finish, with an error for the rest.
"""

import json
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import httpx
import pytest
from ray.serve.generated.serve_pb2 import ASGIRequest
from ray.serve.generated.serve_pb2_grpc import ASGIServiceStub

from tests.service.conftest import GOLDEN, Service
from tests.service.processes import processes_of, public_ports
from tests.service.test_serve import eventually, holders, sample

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]
SHORT = {"prompt_token_ids": [1, 2, 3], "max_new_tokens": 64, "mode": "static", "ignore_eos": True}
LONG = {**SHORT, "max_new_tokens": 2000}
_DRAIN_S = 2


class Reader(threading.Thread):
    """Reads a stream to its end; `begun` when its first block has come."""

    def __init__(self, service, request):
        super().__init__()
        self.service, self.request = service, {**request, "stream": True}
        self.begun, self.lines = threading.Event(), []

    def run(self):
        with httpx.stream("POST", f"{self.service.url}/generate", json=self.request, timeout=60) as response:
            for line in response.iter_lines():
                self.lines.append(line)
                self.begun.set()

    @property
    def last(self):
        """The last event: its name and value."""
        name, data = [line for line in self.lines if line][-2:]
        return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


@pytest.fixture(scope="module")
def open_to_all():
    flags = ("--host", "0.0.0.0", "--drain-timeout-s", _DRAIN_S, "--max-running", 64, "--num-ingresses", 2)
    running = Service("--model", GOLDEN, *flags)
    running.wait_until_ready()
    yield running
    running.process.kill()
    running.process.communicate()


def test_only_the_service_listens_to_others_and_ray_asks_for_its_token(open_to_all):
    ports = public_ports(open_to_all.process.pid)
    assert "ProxyActor" in ports.pop(open_to_all.port)
    assert ports, "Serve's replicas have a port each; if they do not any more, docs/security.md can say so"
    for port, listener in ports.items():
        assert listener.startswith("ray::ServeReplica"), (port, listener)
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel, pytest.raises(grpc.RpcError) as refused:
            ASGIServiceStub(channel).HandleRequest(ASGIRequest(), timeout=10)
        assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED


@pytest.fixture
def client(open_to_all):
    with httpx.Client(base_url=open_to_all.url, timeout=60) as opened:
        yield opened


def has_torch(process):
    """Whether torch's libraries are in a process."""
    return "libtorch" in Path(f"/proc/{process}/maps").read_text()


def test_only_the_model_has_torch_in_its_process(open_to_all):
    assert [has_torch(process) for process in processes_of(open_to_all, "Generator")] == [True]
    eventually(lambda: len(processes_of(open_to_all, "Ingress")) == 2, "two ingresses never came")
    assert [has_torch(process) for process in processes_of(open_to_all, "Ingress")] == [False, False]


def test_requests_spread_over_the_ingresses_and_any_of_them_tells_of_all(open_to_all, client):
    eventually(lambda: len(holders(client, "queue_blocks_left")) == 2, "two ingresses never came")
    sent = 0

    def refused_by(ingress):
        return sample(client, "request_rejected_total", replica=ingress, reason="invalid_request")

    def ask(_):
        assert httpx.post(f"{open_to_all.url}/generate", json={}, timeout=60).status_code == 422

    both = holders(client, "queue_blocks_left")
    while not all(map(refused_by, both)):
        assert sent < 200, "all requests come to one ingress"
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(ask, range(4)))
        sent += 4
    assert {sum(map(refused_by, both)) for _ in range(8)} == {sent}
    reader = [Reader(open_to_all, LONG) for _ in range(4)]
    for one in reader:
        one.start()
    assert all(one.begun.wait(60) for one in reader)
    seen = [sample(client, "num_requests_running") for _ in range(4)]
    waiting = sample(client, "num_requests_waiting")
    for one in reader:
        one.join()
    assert seen == [4] * 4
    assert waiting == 0
    assert client.get("/health").json()["replicas_ready"] == 1


def test_sigterm_lets_streams_finish_and_cuts_those_that_take_too_long(open_to_all):
    assert httpx.get(f"{open_to_all.url}/live").json() == {"status": "ok"}
    short, *long = readers = [Reader(open_to_all, SHORT)] + [Reader(open_to_all, LONG) for _ in range(24)]
    for reader in readers:
        reader.start()
    for reader in readers:
        assert reader.begun.wait(60)
    open_to_all.process.send_signal(signal.SIGTERM)
    _, said = open_to_all.process.communicate(timeout=60)
    for reader in readers:
        reader.join(10)
    assert open_to_all.process.returncode == 0, said
    assert f"requests were cut after {_DRAIN_S} s" in said
    assert short.last[0] == "done"
    assert {reader.last[0] for reader in long} == {"error"}
    assert all(reader.last[1]["error"]["code"] == "not_ready" for reader in long)
    assert "Traceback" not in said
    assert "(raylet)" not in said

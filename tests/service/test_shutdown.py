"""A second service: what it listens on, and how it ends: in time for those that finish, with an error for the rest."""

import json
import signal
import threading

import grpc
import httpx
import pytest
from ray.serve.generated.serve_pb2 import ASGIRequest
from ray.serve.generated.serve_pb2_grpc import ASGIServiceStub

from tests.service.conftest import GOLDEN, Service
from tests.service.processes import public_ports

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
    running = Service("--model", GOLDEN, "--host", "0.0.0.0", "--drain-timeout-s", _DRAIN_S, "--max-running", 64)
    running.wait_until_ready()
    yield running
    running.process.kill()
    running.process.communicate()


def test_only_the_service_listens_to_others_and_ray_asks_for_its_token(open_to_all):
    ports = public_ports(open_to_all.process.pid)
    assert "ProxyActor" in ports.pop(open_to_all.port)
    assert ports, "Serve's replicas have a port each; if they do not any more, docs/security.md can say so"
    for port, command in ports.items():
        assert command.startswith("ray::ServeReplica"), (port, command)
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel, pytest.raises(grpc.RpcError) as refused:
            ASGIServiceStub(channel).HandleRequest(ASGIRequest(), timeout=10)
        assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED


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

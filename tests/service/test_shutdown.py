"""Two replicas behind two ingresses: their ports, their loaded libraries, and the end of the service.

Requests that finish in time are answered; the others get an error.
"""

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from ray._private.services import node_ip_address_from_perspective
from ray.serve.generated.serve_pb2 import ASGIRequest
from ray.serve.generated.serve_pb2_grpc import ASGIServiceStub

from tests.service.processes import descendants, ports, processes_of
from tests.service.reading import Streamed, eventually, sample, until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
SHORT = {"prompt_token_ids": [1, 2, 3], "max_new_tokens": 24, "mode": "static", "ignore_eos": True}
LONG = {**SHORT, "max_new_tokens": 2000}
#: seconds that a forward takes longer: a short answer has time enough when the service ends, a long one has not
SLOW = 0.02


def test_only_the_service_listens_to_others(pair_client, pair):
    if node_ip_address_from_perspective().startswith("127."):
        pytest.skip("this machine has no network card; tests/loopback makes one, with iproute2")
    [(port, listener)] = ports(pair.process.pid, public=True).items()
    assert port == pair.port
    assert "ProxyActor" in listener


def test_replicas_ask_for_rays_token(pair_client, pair):
    refusals = dict.fromkeys((*processes_of(pair, "Generator"), *processes_of(pair, "Ingress")), 0)
    for replica in refusals:
        for port in ports(replica, public=False):
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel, pytest.raises(grpc.RpcError) as refused:
                ASGIServiceStub(channel).HandleRequest(ASGIRequest(), timeout=10)
            refusals[replica] += refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
    assert all(refusals.values()), refusals


def has_torch(process):
    return "libtorch" in Path(f"/proc/{process}/maps").read_text()


def test_only_the_model_has_torch_in_its_process(pair_client, pair):
    replicas = processes_of(pair, "Generator")
    assert [has_torch(process) for process in replicas] == [False, False]
    assert all(any(has_torch(engine) for engine in descendants(replica)) for replica in replicas)
    eventually(lambda: len(processes_of(pair, "Ingress")) == 2, "two ingresses never came")
    assert [has_torch(process) for process in processes_of(pair, "Ingress")] == [False, False]


def test_any_ingress_tells_what_all_replicas_have(pair_client, pair):
    pair.pace.slow(0.1)
    streams = [Streamed(pair_client, {**LONG, "max_new_tokens": 100}) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool, pair.pace.released():
        for stream in streams:
            pool.submit(stream.read)
        assert all(stream.began.wait(60) for stream in streams)
        pair.pace.hold()
        assert [sample(pair_client, "num_requests_running") for _ in range(8)] == [4] * 8
        assert sample(pair_client, "num_requests_waiting") == 0
        assert pair_client.get("/health").json()["replicas_ready"] == 2
        pair.pace.full()


def test_sigterm_lets_streams_finish_and_cuts_those_that_take_too_long(pair_client, ending_pair):
    assert pair_client.get("/live").json() == {"status": "ok"}
    ending_pair.pace.slow(SLOW)
    long, short = [Streamed(pair_client, LONG) for _ in range(8)], Streamed(pair_client, SHORT)
    with ThreadPoolExecutor(9) as pool, ending_pair.pace.released():
        cut = [pool.submit(stream.read) for stream in long]
        assert all(stream.began.wait(60) for stream in long)
        finished = pool.submit(short.read)
        assert short.began.wait(60)
        ending_pair.pace.hold()
        ending_pair.process.send_signal(signal.SIGTERM)
        until(pair_client, 503)
        ending_pair.pace.slow(SLOW)
        assert ending_pair.process.wait(60) == 0, ending_pair.stderr
        assert finished.result()[1] == "length"
        for stream in cut:
            with pytest.raises(AssertionError, match="not_ready"):
                stream.result()
    assert {stream.last[0] for stream in long} == {"error"}
    assert "requests were cut after 2 s" in ending_pair.stderr
    assert "Traceback" not in ending_pair.stderr
    assert "(raylet)" not in ending_pair.stderr

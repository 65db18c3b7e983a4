"""Admission over HTTP: full queues, leaving the queue, timeouts in the queue, priorities, keys and their limits."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.gateway.ingress import Ingress
from service.replica.replica import Replica
from service.settings.settings import Settings
from tests.gateway.conftest import MakeGenerator
from tests.gateway.engines import EngineGate
from tests.gateway.generate.helpers import GENERATE, ask, body, problem, refused
from tests.gateway.helpers import client, eventually, keys_file, over, page
from tests.gateway.local import LocalBackend


async def queued(http: httpx.AsyncClient, count: int) -> None:
    async with asyncio.timeout(120):
        while (await page(http))("mrp_num_requests_waiting", replica="queue") != count:
            await asyncio.sleep(0.002)


@pytest.fixture
def backend(make_generator: MakeGenerator, gate: EngineGate) -> LocalBackend:
    """A replica that decodes one request at a time, takes two, and makes no forward before the gate is open."""
    return LocalBackend(make_generator(deps=gate.deps, max_num_seqs=1))


def request(http: httpx.AsyncClient, **fields: Any) -> asyncio.Task[dict[str, Any]]:
    return asyncio.ensure_future(ask(http, body(**fields)))


class TestQueue:
    async def test_a_full_queue_refuses_with_429(self, backend, gate):
        async with over(backend, max_waiting=2) as http:
            tasks = [request(http) for _ in range(4)]
            await queued(http, 2)
            response = await http.post(GENERATE, json=body())
            detail = problem(response, 429)
            assert (detail["code"], detail["message"]) == ("queue_full", "2 requests are waiting, allowed are 2")
            assert response.headers["retry-after"] == "1"  # the rate is known after a second
            assert (await refused(http, body(seed=1), 429))["code"] == "queue_full"
            assert len(backend.requests) == 2
            gate.release()
            answers = await asyncio.gather(*tasks)
            assert len({tuple(answer["token_ids"]) for answer in answers}) == 1
            await ask(http, body())

    async def test_an_admitted_request_is_not_refused_by_the_replica(self, make_generator, gate):
        """Eight requests are decoded and two wait in the engine, although only one may wait at the ingress."""
        generator = make_generator(deps=gate.deps, max_num_seqs=8, max_waiting=1)
        async with over(generator, max_waiting=1) as http:
            tasks = [request(http, seed=seed) for seed in range(11)]
            await queued(http, 1)
            assert (await refused(http, body(), 429))["code"] == "queue_full"
            gate.release()
            assert len(await asyncio.gather(*tasks)) == 11

    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_client_that_leaves_the_queue_frees_its_position(self, backend, gate, stream):
        async with over(backend) as http:
            tasks = [request(http) for _ in range(2)]
            await gate.holds()
            leaving = asyncio.ensure_future(http.post(GENERATE, json=body(stream=stream)))
            await queued(http, 1)
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
            await queued(http, 0)
            gate.release()
            await asyncio.gather(*tasks)
            await ask(http, body())
        assert len(backend.requests) == 3

    async def test_a_time_limit_that_passes_in_the_queue_is_an_error(self, backend, gate):
        async with over(backend) as http:
            tasks = [request(http) for _ in range(2)]
            await gate.holds()
            detail = await refused(http, body(timeout_s=0.05), 504)
            assert (detail["code"], detail["param"]) == ("deadline_exceeded", "timeout_s")
            assert detail["message"] == "timeout_s is 0.05, nothing was decoded by then"
            await queued(http, 0)
            gate.release()
            await asyncio.gather(*tasks)
        assert len(backend.requests) == 2

    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_server_that_stops_ends_queued_requests(self, backend, gate, stream):
        ingress = Ingress("i0", Settings(), backend)
        async with client(ingress.app(answers_request_id=True)) as http:
            tasks = [asyncio.ensure_future(http.post(GENERATE, json=body(stream=stream))) for _ in range(3)]
            await queued(http, 1)
            ingress.draining.abort()
            for response in await asyncio.gather(*tasks):
                assert problem(response, 503)["message"].startswith("the server shut down")
            await queued(http, 0)
        gate.release()

    async def test_several_answers_of_one_request_wait_like_several_requests(self, backend, gate):
        async with over(backend, served_model_name="golden") as http:
            model = (await http.get("/v1/models")).json()["data"][0]["id"]
            wanted = {
                "model": model,
                "prompt": [1, 2, 3],
                "n": 5,
                "max_tokens": 4,
                "priority": 2,
                "prompt_cache_key": "k",
            }
            task = asyncio.ensure_future(http.post("/v1/completions", json=wanted))
            await queued(http, 3)
            assert (await page(http))("mrp_queue_blocks_left") == 5
            gate.release()
            assert len((await task).json()["choices"]) == 5
        assert {(request.sharing.priority, request.session) for request in backend.requests} == {(2, "k")}


class TestOrder:
    async def test_the_queue_goes_by_priority_and_then_by_arrival(self, backend, gate):
        async with over(backend) as http:
            tasks = [request(http, seed=seed) for seed in (1, 2)]
            await gate.holds()
            for count, priority in enumerate((5, 9, 5, 0, 9, 1), 1):
                tasks.append(request(http, seed=10 * priority + count, priority=priority))
                await queued(http, count)
            assert [request.sampling.seed for request in backend.requests] == [1, 2]
            gate.release()
            await asyncio.gather(*tasks)
        assert [request.sampling.seed for request in backend.requests[2:]] == [4, 16, 51, 53, 92, 95]

    async def test_a_key_that_floods_waits_and_another_keys_request_starts_at_once(self, backend, gate, keyed):
        _, http = keyed(backend, a={}, b={})
        async with http:
            tasks = [asyncio.ensure_future(http.post(GENERATE, json=body(), headers=key("a"))) for _ in range(5)]
            await queued(http, 4)
            tasks.append(asyncio.ensure_future(http.post(GENERATE, json=body(), headers=key("b"))))
            await eventually(lambda: len(backend.requests) == 2)
            assert [request.sharing.tenant for request in backend.requests] == ["a", "b"]
            await queued(http, 4)
            gate.release()
            assert {response.status_code for response in await asyncio.gather(*tasks)} == {200}
        assert [request.sharing.tenant for request in backend.requests[2:]] == ["a"] * 4


@pytest.fixture
def keyed(tmp_path: Path, generator: Replica) -> Callable[..., tuple[LocalBackend, httpx.AsyncClient]]:
    """keyed(name={…}, …) -> the backend and a client of an ingress with keys of these names and limits."""

    def make(backend: LocalBackend | None = None, **keys: dict[str, Any]) -> tuple[LocalBackend, httpx.AsyncClient]:
        backend = backend or LocalBackend(generator)
        ingress = Ingress("i0", Settings(api_keys_file=keys_file(tmp_path, **keys)), backend)
        return backend, client(ingress.app(answers_request_id=True))

    return make


def key(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}"}


class TestKeys:
    async def test_a_changed_file_counts_for_the_next_request(self, keyed, tmp_path):
        _, http = keyed(a={})
        async with http:
            assert (await http.post(GENERATE, json=body(), headers=key("a"))).status_code == 200
            keys_file(tmp_path, b={}, c={})
            problem(await http.post(GENERATE, json=body(), headers=key("a")), 401)
            assert (await http.post(GENERATE, json=body(), headers=key("b"))).status_code == 200

    async def test_a_request_has_the_tenant_and_weight_of_its_key(self, keyed):
        backend, http = keyed(a={"weight": 3}, b={})
        async with http:
            for name in ("a", "b"):
                response = await http.post(GENERATE, json=body(), headers=key(name))
                assert response.status_code == 200
            assert problem(await http.post(GENERATE, json=body(), headers=key("c")), 401)
        assert [(request.sharing.tenant, request.sharing.tenant_share) for request in backend.requests] == [
            ("a", 3.0),
            ("b", 1.0),
        ]

    async def test_requests_a_minute_are_limited(self, keyed):
        _, http = keyed(a={"requests_per_minute": 2}, b={})
        async with http:
            for _ in range(2):
                assert (await http.post(GENERATE, json=body(), headers=key("a"))).status_code == 200
            response = await http.post(GENERATE, json=body(), headers=key("a"))
            detail = problem(response, 429)
            assert detail["code"] == "rate_limited"
            assert detail["message"].startswith("key 'a' may have 2 requests a minute; try again in ")
            assert 1 <= int(response.headers["retry-after"]) <= 30
            assert (await http.post(GENERATE, json=body(), headers=key("b"))).status_code == 200
            assert (await page(http))("mrp_request_rejected_total", reason="rate_limited") == 1
            openai = await http.post("/v1/completions", json={"model": "x", "prompt": "x"}, headers=key("a"))
            assert openai.status_code == 429  # before the body is read, so wrong bodies cannot get around the limit

    async def test_tokens_a_minute_count_the_used_tokens(self, keyed):
        """8 + 16 are used by each: the key is out after the second."""
        _, http = keyed(a={"tokens_per_minute": 50})
        async with http:
            for _ in range(2):
                assert (await http.post(GENERATE, json=body(), headers=key("a"))).status_code == 200
            response = await http.post(GENERATE, json=body(stream=True), headers=key("a"))
            assert "50 tokens a minute" in problem(response, 429)["message"]
            # 50 - 2 × 24 leaves 2 of 24: 22 tokens come in 27 s
            assert 20 <= int(response.headers["retry-after"]) <= 27

    @pytest.mark.parametrize(
        "value", [b"Bearer \xff\xfe\x00\x80", b"Bearer \xc3", b"\xe4\xf6\xfc", b"Bearer" + b" " * 99]
    )
    async def test_odd_bytes_are_a_wrong_key(self, keyed, value):
        _, http = keyed(a={})
        async with http:
            for header in (b"authorization", b"x-api-key"):
                assert (await http.get("/v1/models", headers={header: value})).status_code == 401

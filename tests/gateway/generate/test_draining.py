"""A draining ingress: the requests that it answers, refuses, and ends because they take too long."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from service.gateway.ingress import Ingress
from service.replica.replica import Replica
from service.settings.settings import Settings
from tests.gateway.conftest import MakeGenerator
from tests.gateway.doubles import AsgiClient
from tests.gateway.engines import EngineGate
from tests.gateway.generate.helpers import GENERATE, ask, body, problem, refused
from tests.gateway.helpers import client, eventually
from tests.gateway.local import LocalBackend


@pytest.fixture
def generator(make_generator: MakeGenerator, gate: EngineGate) -> Replica:
    return make_generator(deps=gate.deps)


@pytest.fixture
def ingress(generator: Replica) -> Ingress:
    return Ingress("i0", Settings(), LocalBackend(generator))


@pytest.fixture
async def http(ingress: Ingress) -> AsyncIterator[httpx.AsyncClient]:
    async with client(ingress.app(answers_request_id=True)) as http:
        yield http


async def test_a_draining_ingress_is_alive_and_not_ready(ingress, http):
    assert (await http.get("/live")).json() == {"status": "ok"}
    assert (await http.get("/health")).status_code == 200
    assert ingress.draining.begin() == 0
    response = await http.get("/health")
    assert "draining" in problem(response, 503)["message"]
    assert int(response.headers["retry-after"]) >= 1
    assert (await http.get("/live")).json() == {"status": "ok"}


async def test_new_requests_are_refused_and_counted(ingress, http):
    ingress.draining.begin()
    detail = await refused(http, body(), 503)
    assert detail["code"] == "not_ready"
    assert "draining" in detail["message"]
    assert (await http.post("/v1/completions", json={"prompt": "a"})).status_code == 503
    assert 'mrp_request_rejected_total{reason="not_ready",replica="i0"} 3.0' in (await http.get("/metrics")).text


async def test_requests_in_flight_are_finished(ingress, http, gate):
    answers = [
        asyncio.ensure_future(http.post(GENERATE, json=body(stream=stream, ignore_eos=True)))
        for stream in (True, False)
    ]
    await gate.holds()
    await eventually(lambda: ingress.draining.in_flight == 2)
    assert ingress.draining.begin() == 2
    gate.release()
    stream, whole = [await answer for answer in answers]
    assert "event: done" in stream.text
    assert len(whole.json()["token_ids"]) == 16
    assert ingress.draining.begin() == 0


async def test_a_request_that_takes_too_long_is_cut_before_and_after_the_first_block(ingress, http, generator, gate):
    gate.let(8)  # a block
    asgi_client = AsgiClient(body(stream=True, max_new_tokens=2000, ignore_eos=True), stays=True)
    visit = asyncio.ensure_future(asgi_client.request(ingress.app(answers_request_id=True)))
    await asgi_client.got_block.wait()
    await gate.holds(before=9)
    whole = asyncio.ensure_future(http.post(GENERATE, json=body()))
    await eventually(lambda: ingress.draining.in_flight == 2)
    ingress.draining.abort()
    ingress.draining.abort()
    await visit
    assert b'event: error\ndata: {"error":{"code":"not_ready","message":"the server shut down' in asgi_client.content
    response = await whole
    assert problem(response, 503)["message"].startswith("the server shut down")
    assert int(response.headers["retry-after"]) >= 1
    assert ingress.draining.in_flight == 0
    gate.release()
    await eventually(lambda: generator.snapshot().in_flight == 0)


async def test_an_answer_that_was_sent_is_not_in_flight(ingress, http, gate):
    gate.release()
    await ask(http, body())
    await refused(http, body(mode="none"))
    assert ingress.draining.in_flight == 0

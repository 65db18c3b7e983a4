"""POST /reset_prefix_cache over several replicas: cached prompts are gone, and running requests go on."""

import asyncio

from service.errors import OutOfMemory
from service.gateway.prefix_cache import ResetAnswer
from tests.gateway.generate.helpers import GENERATE, ask, body, problem
from tests.gateway.helpers import assert_shape
from tests.gateway.weights.replicas import ADMIN

LONG = body(prompt_token_ids=list(range(5, 45)), max_new_tokens=8)


async def test_cached_prompts_are_forgotten_on_all_replicas(steady_http):
    async def cached():
        answers = [await ask(steady_http, LONG) for _ in range(2)]  # one of each replica
        return [answer["stats"]["cached_tokens"] for answer in answers]

    await cached()
    assert min(await cached()) > 0
    response = await steady_http.post("/reset_prefix_cache", headers=ADMIN)
    assert (response.status_code, response.json()) == (200, {"replicas": ["r0", "r1"]})
    assert_shape(ResetAnswer, response.json())
    assert await cached() == [0, 0]


async def test_running_requests_go_on(steady_http):
    expected = await ask(steady_http, {**LONG, "seed": 1})
    requests = [asyncio.ensure_future(ask(steady_http, {**LONG, "seed": 1})) for _ in range(4)]
    await asyncio.sleep(0)
    assert (await steady_http.post("/reset_prefix_cache", headers=ADMIN)).status_code == 200
    assert {tuple(answer["token_ids"]) for answer in await asyncio.gather(*requests)} == {tuple(expected["token_ids"])}


async def test_it_needs_the_administrators_key_and_no_fields(steady_http):
    problem(await steady_http.post("/reset_prefix_cache"), 401)
    problem(await steady_http.post("/reset_prefix_cache", headers=ADMIN, json={"now": True}), 422)
    assert (await steady_http.post("/admin/reset_prefix_cache", headers=ADMIN)).status_code == 404


async def test_a_replica_that_fails_is_named(steady, steady_http, monkeypatch):
    def fail():
        raise OutOfMemory("no memory")

    monkeypatch.setattr(steady.replicas[1].engine.core.engine, "reset_prefix_cache", fail)
    detail = problem(await steady_http.post("/reset_prefix_cache", headers=ADMIN), 503)
    assert detail["code"] == "cache_reset_failed"
    assert detail["message"].startswith("1 of 2 replicas have failed: r1: ")
    assert (await steady_http.post(GENERATE, json=LONG)).status_code == 200

"""Several choices of one request: each is a request of its own to a replica, and all end together."""

import asyncio

import pytest

from service.api.streams import all_of
from service.errors import QueueFull
from tests.gateway.apis import COMPLETIONS, ask, chunk, completion, ending, refused
from tests.gateway.doubles import AsgiClient, Scripted
from tests.gateway.helpers import application, over


async def test_each_prompt_and_choice_is_a_request_with_a_seed_of_its_own():
    backend = Scripted(chunk(), ending())
    async with over(backend) as http:
        answer = await ask(http, COMPLETIONS, completion(prompt=["w1", "w2"], n=3, seed=1))
        usage = {"prompt_tokens": 6, "completion_tokens": 6, "total_tokens": 12}
        assert answer["usage"] == usage | {"prompt_tokens_details": {"cached_tokens": 2}}
        await refused(http, COMPLETIONS, completion(n=129))
    seeds = [(request.text, request.sampling.seed) for request in backend.requests]
    assert seeds == [(f"w{1 + seed // 3}", 1 + seed) for seed in range(6)]
    assert len({request.request_id for request in backend.requests}) == 6


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_all_its_requests(stream):
    backend = Scripted(chunk(), hangs=True)
    backend.waiting_for = 3
    app = application(backend)
    asgi_client = AsgiClient(completion(n=3, stream=stream), path=COMPLETIONS, stays=not stream)
    task = asyncio.ensure_future(asgi_client.request(app))
    await backend.all_hang.wait()
    if stream:
        asgi_client.leaves.set()
    else:  # where Serve, not the application, sees the client leave: it cancels the request
        task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert backend.live == 0
    assert len(backend.requests) == 3
    assert bool(asgi_client.content) == stream


async def test_the_first_error_cancels_the_other_jobs():
    ended: list[str] = []

    async def hangs() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("hangs")

    async def fails() -> None:
        raise QueueFull("full")

    with pytest.raises(QueueFull):
        await all_of([hangs(), fails(), hangs()])
    assert ended == ["hangs", "hangs"]

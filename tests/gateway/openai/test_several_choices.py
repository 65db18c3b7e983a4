"""Several choices of one request: each is a request of its own to a replica, and all end together."""

import asyncio
from typing import Any

import pytest

from service.api.streams import all_of, merged
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


async def numbers(count: int, closed: list[int]) -> Any:
    try:
        for number in range(count):
            yield number
        if count < 0:
            raise ValueError(count)
    finally:
        closed.append(count)


async def test_merged_streams_keep_their_order():
    closed: list[int] = []
    items = [item async for item in merged([numbers(3, closed), numbers(0, closed), numbers(2, closed)])]
    assert sorted(items) == [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1)]
    assert [item for item in items if item[0] == 0] == [(0, 0), (0, 1), (0, 2)]
    assert sorted(closed) == [0, 2, 3]


async def test_closing_a_merge_or_an_error_closes_every_stream():
    closed: list[int] = []
    items = merged([numbers(3, closed), numbers(4, closed)])
    await anext(items)
    await items.aclose()
    assert sorted(closed) == [3, 4]
    with pytest.raises(ValueError, match="-1"):
        _ = [item async for item in merged([numbers(9, closed), numbers(-1, closed)])]
    assert sorted(closed) == [-1, 3, 4, 9]


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

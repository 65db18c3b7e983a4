"""Failures within a stream, time-outs, and clients that leave, with scripted replicas."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from service.api.streams import all_of, merged
from service.errors import DeadlineExceeded, NotReady, QueueFull
from service.gateway.ingress import Ingress
from service.messages.wire import Failure
from service.settings.settings import Settings
from tests.gateway.doubles import Scripted
from tests.gateway.helpers import over
from tests.gateway.openai.helpers import CHAT, COMPLETIONS, ask, chat, choices, chunk, completion, ending, frames
from tests.gateway.openai.helpers import refused as refusal


async def test_a_time_out_is_length_and_ours_in_the_stats() -> None:
    async with over(Scripted(chunk(), ending("timeout"))) as http:
        (choice,) = (await ask(http, CHAT, chat()))["choices"]
        assert (choice["finish_reason"], choice["stats"]["finish_reason"]) == ("length", "timeout")
        last = choices(await frames(http, CHAT, chat()))[-1]
        assert (last["finish_reason"], last["stats"]["finish_reason"]) == ("length", "timeout")


@pytest.mark.parametrize("lost", [Failure(NotReady("the replica was lost")), NotReady("the replica was lost")])
async def test_an_error_in_the_midst_is_a_frame_and_no_done(lost: Failure | NotReady) -> None:
    backend = Scripted(chunk(), lost)
    async with over(backend) as http:
        response = await http.post(COMPLETIONS, json=completion(stream=True, n=3))
        events = [json.loads(event.removeprefix("data: ")) for event in response.text.strip().split("\n\n")]
        error = events[-1]["error"]
        assert (error["message"], error["type"]) == ("the replica was lost", "server_error")
        assert error["request_id"] == response.headers["x-request-id"]
        assert sum("error" in event for event in events) == 1
        page = (await http.get("/metrics")).text
    assert 'mrp_request_rejected_total{reason="not_ready",replica="i0"} 1.0' in page
    assert backend.live == 0


async def test_a_bug_in_the_midst_is_a_frame_that_tells_nothing() -> None:
    async with over(Scripted(chunk(), ZeroDivisionError("secret"))) as http:
        response = await http.post(COMPLETIONS, json=completion(stream=True))
    *_, last = [json.loads(event.removeprefix("data: ")) for event in response.text.strip().split("\n\n")]
    assert last["error"]["code"] == "internal_error"
    assert "secret" not in response.text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("error", [QueueFull("full", retry_after=2.5), DeadlineExceeded("too late")])
async def test_an_error_before_the_first_block_has_its_status(error: Any, stream: bool) -> None:
    backend = Scripted(Failure(error))
    async with over(backend) as http:
        response = await http.post(CHAT, json=chat(stream=stream, n=4))
        assert response.status_code == error.status
        assert response.headers.get("retry-after") == ("3" if error.retry_after else None)
    assert backend.live == 0


async def test_one_request_may_ask_for_many_at_once() -> None:
    backend = Scripted(chunk(), ending())
    async with over(backend) as http:
        answer = await ask(http, COMPLETIONS, completion(prompt=["w1", "w2"], n=3, seed=1))
        assert answer["usage"] == {
            "prompt_tokens": 6,
            "completion_tokens": 6,
            "total_tokens": 12,
            "prompt_tokens_details": {"cached_tokens": 2},
        }
        await refusal(http, COMPLETIONS, completion(n=129))
    assert [(request.text, request.sampling.seed) for request in backend.requests] == [
        ("w1", 1),
        ("w1", 2),
        ("w1", 3),
        ("w2", 4),
        ("w2", 5),
        ("w2", 6),
    ]
    assert len({request.request_id for request in backend.requests}) == 6


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_all_its_requests(stream: bool) -> None:
    backend = Scripted(chunk(), hangs=True)
    backend.waiting_for = 3
    app = Ingress("i0", Settings(), backend).app(answers_request_id=True)
    body = json.dumps(completion(n=3, stream=stream)).encode()
    sent: list[dict[str, Any]] = []
    asked = False

    async def receive() -> dict[str, Any]:
        nonlocal asked
        if not asked:
            asked = True
            return {"type": "http.request", "body": body, "more_body": False}
        await backend.all_hang.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": COMPLETIONS, "headers": [], "query_string": b"", "root_path": ""}
    task = asyncio.ensure_future(app(scope, receive, send))
    if not stream:  # where Serve, not the application, sees the client leave: it cancels the request
        await backend.all_hang.wait()
        task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert backend.live == 0
    assert len(backend.requests) == 3
    assert bool(sent) == stream


async def numbers(count: int, closed: list[int]) -> Any:
    try:
        for number in range(count):
            yield number
        if count < 0:
            raise ValueError(count)
    finally:
        closed.append(count)


async def test_merged_streams_keep_their_own_order() -> None:
    closed: list[int] = []
    items = [item async for item in merged([numbers(3, closed), numbers(0, closed), numbers(2, closed)])]
    assert sorted(items) == [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1)]
    assert [item for item in items if item[0] == 0] == [(0, 0), (0, 1), (0, 2)]
    assert sorted(closed) == [0, 2, 3]


async def test_closing_a_merge_or_an_error_closes_every_stream() -> None:
    closed: list[int] = []
    items = merged([numbers(3, closed), numbers(4, closed)])
    await anext(items)
    await items.aclose()
    assert sorted(closed) == [3, 4]
    with pytest.raises(ValueError, match="-1"):
        _ = [item async for item in merged([numbers(9, closed), numbers(-1, closed)])]
    assert sorted(closed) == [-1, 3, 4, 9]


async def test_the_first_error_cancels_the_other_jobs() -> None:
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

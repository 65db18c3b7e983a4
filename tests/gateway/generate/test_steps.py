"""`stream_steps`: every decoding step is an event, sent while its block is decoded, and the answer stays the same."""

import asyncio
from typing import Any

import pytest

from service.api.answers import BlockFrame, StepFrame
from tests.gateway.doubles import AsgiClient, LosesFirst
from tests.gateway.generate.helpers import CASES, GENERATE, body, essence, frames, golden_body, refused, streamed
from tests.gateway.helpers import application, assert_shape, over

STEP = {"block": 0, "kind": "denoise", "revealed": [(0, 5, 0.5)], "revoked": [], "drafted": [], "accepted": 0}


def steps_of(events: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    return [data for name, data in events if name == "step"]


@pytest.mark.parametrize("case", CASES[::3])
async def test_the_steps_are_those_of_the_trace_and_the_answer_is_the_same(http, case):
    request = golden_body(case, return_trace=True, seed=7)
    plain = await streamed(http, request)
    events = await frames(http, {**request, "stream_steps": True})
    steps = steps_of(events)
    trace = [{name: step[name] for name in STEP} for step in steps]
    assert trace == plain["trace"]
    for step in steps:
        assert step["texts"].keys() == {str(token) for _, token, _ in (*step["revealed"], *step["drafted"])}
    rest = [event for event in events if event[0] != "step"]
    answer = {**rest[-1][1], "text": "", "token_ids": [], "trace": []}
    for name, block in rest[:-1]:
        assert name == "block"
        answer |= {field: answer[field] + block[field] for field in ("text", "token_ids", "trace")}
    assert essence(answer) == essence(plain)


async def test_steps_come_in_order_before_their_block(http):
    events = await frames(http, body(stream_steps=True, max_new_tokens=20))
    numbers: dict[int, int] = {}
    finished, before = -1, 0.0
    for name, data in events[:-1]:
        if name == "block":
            assert_shape(BlockFrame, data)
            assert data["index"] == finished + 1
            finished = data["index"]
            continue
        assert_shape(StepFrame, data)
        assert data["block"] == finished + 1
        assert data["step"] == numbers.get(data["block"], 0)
        assert data["ms"] >= before
        numbers[data["block"]], before = data["step"] + 1, data["ms"]
    assert set(numbers) == set(range(finished + 1))


async def test_only_the_first_block_has_positions_of_the_prompt(http):
    [model] = (await http.get("/v1/models")).json()["data"]
    events = await frames(http, body(prompt_token_ids=[1, 2, 3, 4, 5], stream_steps=True))
    held = {step["block"]: step["prompt_positions"] for step in steps_of(events)}
    assert held == {block: 5 % model["block_size"] if block == 0 else 0 for block in held}
    assert len(held) > 1


async def test_a_step_is_sent_before_the_next_forward_is_made(make_generator, gate):
    app = application(make_generator(deps=gate.deps))
    asgi_client = AsgiClient(body(prompt_token_ids=[7], stream=True, stream_steps=True), stays=True)
    task = asyncio.ensure_future(asgi_client.request(app))
    gate.let(1)
    await asgi_client.got_event.wait()
    await gate.holds(before=2)
    assert b"event: step" in asgi_client.content
    assert b"event: block" not in asgi_client.content
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    gate.release()


async def test_steps_without_a_stream_are_refused(http):
    response = await http.post(GENERATE, json=body(stream_steps=True))
    detail = response.json()["error"]
    assert (response.status_code, detail["param"]) == (422, "stream_steps")
    assert detail["message"] == (
        "stream_steps is true and stream is false: steps are events of a stream, set stream to true"
    )
    assert "stream_steps" in (await refused(http, body(stream_steps="yes")))["message"]


async def test_after_a_loss_the_steps_of_the_open_block_begin_again(make_generator):
    request = body(stream_steps=True, max_new_tokens=16)
    async with over(make_generator("whole")) as http:
        whole = await frames(http, request)
    backend = LosesFirst(make_generator("first"), make_generator("second"), after=2)
    async with over(backend) as http:
        events = await frames(http, request)
    assert len(backend.requests) == 2
    steps = [(step["block"], step["step"]) for step in steps_of(events)]
    assert steps[:3] == [(0, 0), (0, 1), (0, 0)]
    alike = ("block", "step", "revealed", "texts", "prompt_positions")
    again = [{name: step[name] for name in alike} for step in steps_of(events)[2:]]
    assert again == [{name: step[name] for name in alike} for step in steps_of(whole)]
    assert [data["token_ids"] for name, data in events if name == "block"] == [
        data["token_ids"] for name, data in whole if name == "block"
    ]

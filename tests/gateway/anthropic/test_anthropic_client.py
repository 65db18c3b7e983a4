"""Anthropic's own Python client, unmodified, against the application. Its import takes seconds."""

from collections.abc import AsyncIterator
from types import ModuleType
from typing import Any

import pytest
from starlette.types import ASGIApp

from tests.gateway.helpers import application

MESSAGES: Any = [{"role": "user", "content": "w5 w6 w7"}]


@pytest.fixture
def anthropic() -> ModuleType:
    return pytest.importorskip("anthropic", reason="the extra `dev` installs Anthropic's client")


def client_of(anthropic: ModuleType, app: ASGIApp) -> Any:
    import httpx2

    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app))
    return anthropic.AsyncAnthropic(base_url="http://test", api_key="none", max_retries=0, http_client=http)


@pytest.fixture
async def client(anthropic: ModuleType, app: ASGIApp) -> AsyncIterator[Any]:
    async with client_of(anthropic, app) as client:
        yield client


async def test_whole_and_streamed(client):
    fields: Any = {"model": "golden", "max_tokens": 30, "messages": MESSAGES, "system": "w9"}
    whole = await client.messages.create(**fields, extra_body={"mode": "static", "ignore_eos": True})
    assert whole.stop_reason == "max_tokens"
    assert whole.usage.output_tokens == 30
    assert whole.model_extra["stats"]["mode"] == "static"
    async with client.messages.stream(**fields, extra_body={"mode": "static", "ignore_eos": True}) as stream:
        pieces = [text async for text in stream.text_stream]
        final = await stream.get_final_message()
    assert "".join(pieces) == whole.content[0].text == final.content[0].text
    assert len(pieces) > 1
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 30)
    assert final.usage.input_tokens + final.usage.cache_read_input_tokens == sum(
        (whole.usage.input_tokens, whole.usage.cache_read_input_tokens)
    )
    raw = [event.type async for event in await client.messages.create(**fields, stream=True)]
    assert (raw[0], raw[-1]) == ("message_start", "message_stop")
    beta = await client.beta.messages.create(
        **fields, betas=["context-1m-2025-08-07"], extra_body={"mode": "static", "ignore_eos": True}
    )
    assert beta.content[0].text == whole.content[0].text


async def test_errors_are_the_clients_own(anthropic, client):
    fields: Any = {"max_tokens": 8, "messages": MESSAGES}
    with pytest.raises(anthropic.BadRequestError) as caught:
        await client.messages.create(model="golden", **fields, extra_body={"temperature": 2})
    assert caught.value.body["error"]["type"] == "invalid_request_error"
    assert caught.value.request_id
    with pytest.raises(anthropic.NotFoundError):
        await client.messages.create(model="claude-opus-4", **fields)


async def test_a_loop_with_a_tool_that_adds(anthropic, chatting):
    """Asked, called, answered, asked again: with the client's own blocks and its stream helper."""
    schema = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 9}}, "required": ["a"]}
    tools: Any = [{"name": "add", "description": "Adds 1.", "input_schema": schema | {"additionalProperties": False}}]
    fields: Any = {"model": "golden", "max_tokens": 120, "tools": tools, "extra_body": {"mode": "static", "seed": 2}}
    turns: Any = [{"role": "user", "content": "add"}]
    async with client_of(anthropic, application(chatting)) as client:
        choice = {"type": "tool", "name": "add"}
        whole = await client.messages.create(**fields, tool_choice=choice, messages=turns)
        async with client.messages.stream(**fields, tool_choice=choice, messages=turns) as stream:
            final = await stream.get_final_message()
        call = whole.content[-1]
        assert (whole.stop_reason, final.stop_reason) == ("tool_use", "tool_use")
        assert (call.name, call.input) == (final.content[-1].name, final.content[-1].input)
        result = {"type": "tool_result", "tool_use_id": call.id, "content": str(call.input["a"] + 1)}
        turns += [{"role": "assistant", "content": whole.content}, {"role": "user", "content": [result]}]
        again = await client.messages.create(**fields | {"max_tokens": 8}, messages=turns)
    assert again.usage.input_tokens + again.usage.cache_read_input_tokens > whole.usage.input_tokens

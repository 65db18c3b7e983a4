"""OpenAI's own Python client, unmodified, against the application."""

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from starlette.types import ASGIApp

from tests.gateway.apis import PROMPT, user
from tests.gateway.conftest import openai_client

MESSAGES: Any = user()


@pytest.fixture
async def client(app: ASGIApp) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai_client(app) as client:
        yield client


async def test_models(client):
    listed = [model async for model in client.models.list()]
    assert [model.id for model in listed] == ["golden"]
    assert await client.models.retrieve("golden") == listed[0]
    with pytest.raises(openai.NotFoundError) as caught:
        await client.models.retrieve("gpt-4")
    assert caught.value.code == "unknown_model"


async def test_completions_whole_and_streamed(client):
    fields: Any = {"model": "golden", "prompt": PROMPT, "max_tokens": 30, "logprobs": 0, "seed": 3}
    whole = await client.completions.create(**fields, extra_body={"mode": "speculative", "mrp_steps": 2})
    assert whole.usage.prompt_tokens == len(PROMPT)
    (choice,) = whole.choices
    assert len(choice.logprobs.token_logprobs or ()) == whole.usage.completion_tokens
    assert choice.model_extra["stats"]["tokens_per_forward"] > 0
    stream = await client.completions.create(**fields, stream=True, stream_options={"include_usage": True})
    parts = [part async for part in stream]
    assert "".join(part.choices[0].text for part in parts if part.choices) == choice.text
    assert parts[-1].usage
    assert parts[-1].usage.total_tokens == whole.usage.total_tokens
    assert parts[-1].usage.prompt_tokens_details
    assert parts[-1].usage.prompt_tokens_details.cached_tokens == len(PROMPT)


async def test_chats_whole_and_streamed(client):
    fields: Any = {"model": "golden", "messages": MESSAGES, "n": 2, "temperature": 0.8, "seed": 1}
    whole = await client.chat.completions.create(**fields, max_completion_tokens=24, logprobs=True)
    first, second = whole.choices
    assert first.message.content != second.message.content
    assert first.logprobs.content
    assert first.logprobs.content[0].logprob <= 0
    texts = ["", ""]
    async for part in await client.chat.completions.create(**fields, max_tokens=24, stream=True):
        for choice in part.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [first.message.content, second.message.content]


async def test_errors_are_the_clients_own(client):
    with pytest.raises(openai.BadRequestError) as caught:
        await client.completions.create(model="golden", prompt="w5", suffix="w1")
    error = caught.value
    assert (error.param, error.code, error.type) == ("suffix", "invalid_request", "invalid_request_error")
    assert 'suffix is "w1", which is not served' in error.message
    assert error.request_id
    with pytest.raises(openai.BadRequestError):
        await client.completions.create(
            model="golden", prompt="w5", extra_body={"tokens_per_step": 1, "mode": "remask"}
        )

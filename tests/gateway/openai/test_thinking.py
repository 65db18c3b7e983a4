"""Thinking is told apart from the answer; constraints hold after it; it can be turned off where the template can."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.model import load_checkpoint
from service.replica.replica import Replica
from service.settings.settings import Settings
from tests.gateway.apis import CHAT, ask, chat, chat_message, essence, stream_events
from tests.gateway.chatting import give_qwen3, liking
from tests.gateway.conftest import UNMEASURED
from tests.gateway.helpers import over
from tests.gateway.openai.test_tools import TOOLS
from tests.replicas import local_generator
from tests.text.templates import QWEN3

#: as Qwen3's, but the prompt ends within the thinking
OPEN_THINKING = QWEN3.replace(
    "{{- '<|im_start|>assistant\\n' }}",
    "{{- '<|im_start|>assistant\\n' + ('' if enable_thinking is false else '<think>\\n') }}",
)
FORM = {"type": "json_schema", "json_schema": {"schema": {"enum": [["x"], ["y"]]}}}


@pytest.fixture(scope="module")
def thinker(qwen3_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    """A replica whose prompts end within the thinking."""
    assert OPEN_THINKING != QWEN3
    folder: Path = give_qwen3(tmp_path_factory.mktemp("thinker") / "golden", OPEN_THINKING)
    checkpoint = liking(load_checkpoint(folder), "<tool_call>", "</think>")
    generator = local_generator(
        "r0", checkpoint, qwen3_settings.model_copy(update={"model": str(folder)}), deps=UNMEASURED
    )
    yield generator
    generator.close()


async def both(http: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
    """The choice of an answer, whose message is the same in a stream."""
    [choice] = (await ask(http, CHAT, body))["choices"]
    streamed = chat_message(await stream_events(http, CHAT, body))
    assert essence(streamed) == essence({name: value for name, value in choice["message"].items() if value})
    return dict(choice)


@pytest.fixture
async def http(thinker: Replica) -> Any:
    async with over(thinker) as http:
        yield http


async def test_thinking_that_the_prompt_began(http):
    messages = [
        (await both(http, chat("12+5", temperature=1, seed=seed, max_tokens=60)))["message"] for seed in range(4)
    ]
    assert any(message["reasoning_content"] and message["content"] for message in messages)
    assert not any("</think>" in (message["reasoning_content"] or "") for message in messages)


@pytest.mark.parametrize("mode", ["static", "speculative", "remask"])
async def test_a_constraint_holds_after_the_thinking(http, mode):
    choice = await both(http, chat("12+5", max_tokens=200, response_format=FORM, mode=mode))
    assert json.loads(choice["message"]["content"]) in (["x"], ["y"])
    assert choice["message"]["reasoning_content"]
    assert (choice["finish_reason"], choice["constraint_met"]) == ("stop", True)


async def test_tools_are_called_after_the_thinking(http):
    thoughts = []
    for seed in range(4):
        body = chat("12+5", max_tokens=250, tools=TOOLS, tool_choice="required", temperature=1, seed=seed)
        choice = await both(http, body)
        if choice["finish_reason"] == "tool_calls":
            assert choice["message"]["tool_calls"]
            thoughts.append(choice["message"]["reasoning_content"])
    assert any(thoughts)


@pytest.mark.parametrize("off", [{"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}])
async def test_thinking_turned_off(http, off):
    on = await ask(http, CHAT, chat("12+5", max_tokens=4))
    choice = await both(http, chat("12+5", max_tokens=60, response_format=FORM, **off))
    assert json.loads(choice["message"]["content"]) in (["x"], ["y"])
    assert "reasoning_content" not in choice["message"]
    without = await ask(http, CHAT, chat("12+5", max_tokens=4, **off))
    assert without["usage"]["prompt_tokens"] > on["usage"]["prompt_tokens"]  # the template closes the thinking

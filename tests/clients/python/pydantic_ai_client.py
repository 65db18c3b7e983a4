# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#     "pydantic-ai-slim[openai,anthropic]==2.68.0",
# ]
# ///
"""pydantic-ai: an `OpenAIProvider` or an `AnthropicProvider` with a `base_url`."""

from pathlib import Path
from typing import Literal

from apples import Apples
from parts import DEMO, KEY, LONG, MODEL, STORY, TOOLS, fails, part, run
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.exceptions import OutputTokenLimitExceeded
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider


class Files(BaseModel):
    """Some files."""

    names: set[Literal["a", "b"]]
    folder: Path | None


def chat(base=DEMO):
    return OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=f"{base}v1", api_key=KEY))


@part
def text():
    assert "6" in Agent(chat()).run_sync(STORY).output


@part
async def stream():
    async with Agent(chat()).run_stream(STORY) as answer:
        assert "6" in await answer.get_output()


@part
def responses():
    model = OpenAIResponsesModel(MODEL, provider=OpenAIProvider(base_url=f"{DEMO}v1", api_key=KEY))
    assert "6" in Agent(model).run_sync(STORY).output


@part
def anthropic():
    model = AnthropicModel(MODEL, provider=AnthropicProvider(base_url=DEMO.rstrip("/"), api_key=KEY))
    assert "6" in Agent(model).run_sync(STORY).output


@part
def native_output():
    assert Agent(chat(), output_type=NativeOutput(Apples)).run_sync(STORY).output.name


@part
def tool_output():
    assert Agent(chat(TOOLS), output_type=ToolOutput(Apples)).run_sync(STORY).output.name


@part
def a_tool_with_a_set_and_a_path():
    """The checkpoint with random weights may write a path without an end. The tool itself is taken."""
    try:
        assert Agent(chat(TOOLS), output_type=ToolOutput(Files)).run_sync(STORY).output.names
    except OutputTokenLimitExceeded:
        return


@part
def settings():
    assert Agent(chat()).run_sync(STORY, model_settings={"presence_penalty": 0.5, "openai_reasoning_effort": "low"})


@part
def a_prompt_that_is_too_long():
    fails(lambda: Agent(chat()).run_sync(LONG), "ModelContextWindowExceededError")


run()

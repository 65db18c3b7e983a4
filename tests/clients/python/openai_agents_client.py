# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = ["openai-agents==0.24.0"]
# ///
"""OpenAI's agents: `set_default_openai_client(AsyncOpenAI(base_url=…))`, `set_tracing_disabled(True)`."""

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from apples import Apples
from openai import AsyncOpenAI
from openai.types.shared import Reasoning
from parts import DEMO, KEY, MODEL, STORY, TOOLS, part, run

set_tracing_disabled(True)


@function_tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def model(kind, base=DEMO):
    return kind(MODEL, AsyncOpenAI(base_url=f"{base}v1", api_key=KEY))


def agent(kind=OpenAIResponsesModel, **options):
    return Agent(name="bob", model=model(kind), **options)


async def answer(kind=OpenAIResponsesModel, **options):
    return (await Runner.run(agent(kind, **options), STORY)).final_output


@part
async def responses_and_chat():
    for kind in (OpenAIResponsesModel, OpenAIChatCompletionsModel):
        assert "6" in await answer(kind=kind)


@part
async def stream():
    result = Runner.run_streamed(agent(), STORY)
    async for _ in result.stream_events():
        pass
    assert "6" in result.final_output


@part
async def second_turn():
    first = await Runner.run(agent(), STORY)
    assert (await Runner.run(agent(), [*first.to_input_list(), {"role": "user", "content": STORY}])).final_output


@part
async def tools():
    with_tool = Agent(
        name="bob", model=model(OpenAIChatCompletionsModel, TOOLS), tools=[add], tool_use_behavior="stop_on_first_tool",
        model_settings=ModelSettings(tool_choice="add"),
    )  # fmt: skip
    assert (await Runner.run(with_tool, "Add 1 and 2.")).final_output is not None


run(
    structured=lambda: answer(output_type=Apples),
    reasoning=lambda: answer(
        model_settings=ModelSettings(reasoning=Reasoning(effort="low"), store=True, truncation="auto")
    ),
)

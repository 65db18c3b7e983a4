# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#     "openai-agents==0.24.0",
# ]
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


@part
async def responses():
    assert "6" in (await Runner.run(agent(), STORY)).final_output


@part
async def stream():
    result = Runner.run_streamed(agent(), STORY)
    async for _ in result.stream_events():
        pass
    assert "6" in result.final_output


@part
async def chat():
    assert "6" in (await Runner.run(agent(OpenAIChatCompletionsModel), STORY)).final_output


@part
async def structured():
    assert (await Runner.run(agent(output_type=Apples), STORY)).final_output.name


@part
async def second_turn():
    first = await Runner.run(agent(), STORY)
    assert (await Runner.run(agent(), [*first.to_input_list(), {"role": "user", "content": STORY}])).final_output


@part
async def reasoning():
    settings = ModelSettings(reasoning=Reasoning(effort="low"), store=True, truncation="auto")
    assert (await Runner.run(agent(model_settings=settings), STORY)).final_output


@part
async def tools():
    with_tool = Agent(
        name="bob", model=model(OpenAIChatCompletionsModel, TOOLS), tools=[add], tool_use_behavior="stop_on_first_tool",
        model_settings=ModelSettings(tool_choice="add"),
    )  # fmt: skip
    assert (await Runner.run(with_tool, "Add 1 and 2.")).final_output is not None


run()

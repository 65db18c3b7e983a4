"""An agent of a known framework that adds numbers by a tool, against a running service.

    pip install openai-agents
    python -m loadtest.agents --url http://127.0.0.1:8000/v1 --model NAME

The agent has one tool, `add`. The first answer must call it (`tool_choice="required"`); the framework runs it and sends
the result back. What the model then says depends on the model. The script checks that the loop ran: the tool was
called with two whole numbers, its result was sent, and a last answer came. `--stream` does the same streamed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any


async def run(url: str, model: str, *, stream: bool = False, http: Any = None, max_tokens: int = 200) -> dict[str, Any]:
    """The calls that were made, as pairs of numbers, and the last answer. ModuleNotFoundError without the framework.

    `http`: the HTTP client, for tests.
    """
    import agents
    from openai import AsyncOpenAI
    from pydantic import Field

    made: list[tuple[int, int]] = []

    @agents.function_tool
    def add(a: int = Field(ge=0, le=999), b: int = Field(ge=0, le=999)) -> str:
        """Adds two whole numbers."""
        made.append((a, b))
        return str(a + b)

    agents.set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=url, api_key="none", max_retries=0, http_client=http)
    agent = agents.Agent(
        name="adder",
        instructions="Add numbers with the tool.",
        model=agents.OpenAIChatCompletionsModel(model=model, openai_client=client),
        model_settings=agents.ModelSettings(tool_choice="required", max_tokens=max_tokens, temperature=0),
        tools=[add],
    )
    asked = "What is 12 plus 5?"
    if stream:
        streamed = agents.Runner.run_streamed(agent, asked, max_turns=4)
        events = [event.type async for event in streamed.stream_events()]
        return {"calls": made, "answer": streamed.final_output, "events": len(events)}
    answered = await agents.Runner.run(agent, asked, max_turns=4)
    return {"calls": made, "answer": answered.final_output}


def main() -> None:
    """Runs the loop and says what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--stream", action="store_true")
    options = parser.parse_args()
    found = asyncio.run(run(options.url, options.model, stream=options.stream))
    print(found)
    if not found["calls"]:
        sys.exit("the tool was not called")


if __name__ == "__main__":
    main()

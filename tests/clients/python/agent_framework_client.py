# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#     "agent-framework-openai==1.17.0",
# ]
# ///
"""Microsoft's Agent Framework: `OpenAIChatCompletionClient(base_url=…)`."""

from agent_framework import Agent
from agent_framework.openai import OpenAIChatCompletionClient
from parts import DEMO, KEY, MODEL, STORY, part, run


@part
async def agent():
    a = Agent(OpenAIChatCompletionClient(model=MODEL, base_url=f"{DEMO}v1", api_key=KEY), instructions=None)
    assert "6" in (await a.run(STORY)).text


run()

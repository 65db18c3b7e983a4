# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#     "autogen-agentchat==0.7.5",
#     "autogen-ext[openai]==0.7.5",
# ]
# ///
"""AutoGen: `OpenAIChatCompletionClient(base_url=…, model_info=…)`."""

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.models import ModelFamily, UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient
from parts import DEMO, KEY, MODEL, STORY, part, run

INFO = {
    "vision": False,
    "function_calling": True,
    "json_output": True,
    "family": ModelFamily.UNKNOWN,
    "structured_output": True,
}


def client():
    return OpenAIChatCompletionClient(model=MODEL, base_url=f"{DEMO}v1", api_key=KEY, model_info=INFO)


@part
async def create():
    answer = await client().create([UserMessage(content=STORY, source="user")])
    assert "6" in answer.content


@part
async def stream():
    async for answer in client().create_stream([UserMessage(content=STORY, source="user")]):
        last = answer
    assert "6" in last.content


@part
async def agent():
    result = await AssistantAgent("helper", client(), system_message=None).run(task=STORY)
    assert "6" in result.messages[-1].content


@part
async def team():
    agents = [AssistantAgent(name, client(), system_message=None) for name in ("ann", "bob")]
    result = await RoundRobinGroupChat(agents, termination_condition=MaxMessageTermination(3)).run(task=STORY)
    assert len(result.messages) == 3


run()

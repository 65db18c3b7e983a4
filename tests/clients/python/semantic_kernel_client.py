# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#     "semantic-kernel==1.45.0",
# ]
# ///
"""Semantic Kernel: `OpenAIChatCompletion` with a client of its own."""

from openai import AsyncOpenAI
from parts import DEMO, KEY, MODEL, STORY, part, run
from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion, OpenAIChatPromptExecutionSettings
from semantic_kernel.contents import ChatHistory


def service():
    return OpenAIChatCompletion(ai_model_id=MODEL, async_client=AsyncOpenAI(base_url=f"{DEMO}v1", api_key=KEY))


@part
async def chat():
    history = ChatHistory()
    history.add_user_message(STORY)
    answer = await service().get_chat_message_content(history, OpenAIChatPromptExecutionSettings())
    assert "6" in str(answer)


@part
async def agent():
    answer = await ChatCompletionAgent(service=service(), name="Tom", instructions="Count.").get_response(STORY)
    assert str(answer)


@part
async def agent_again():
    tom = ChatCompletionAgent(service=service(), name="Tom", instructions="Count.")
    first = await tom.get_response(STORY)
    assert str(await tom.get_response("And Ann?", thread=first.thread))


run()

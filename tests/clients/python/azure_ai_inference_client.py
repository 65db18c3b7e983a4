# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#     "azure-ai-inference==1.0.0b9",
# ]
# ///
"""Azure AI Inference: `ChatCompletionsClient(endpoint=…)`."""

import json

from azure.ai.inference import ChatCompletionsClient
from azure.ai.inference.models import (
    AssistantMessage,
    ChatCompletionsNamedToolChoice,
    ChatCompletionsNamedToolChoiceFunction,
    ChatCompletionsToolDefinition,
    FunctionDefinition,
    JsonSchemaFormat,
    SystemMessage,
    ToolMessage,
    UserMessage,
)
from azure.core.credentials import AzureKeyCredential
from parts import DEMO, KEY, LONG, MODEL, SCHEMA, STORY, TOOLS, fails, part, run

client = ChatCompletionsClient(endpoint=f"{DEMO}v1", credential=AzureKeyCredential(KEY))
caller = ChatCompletionsClient(endpoint=f"{TOOLS}v1", credential=AzureKeyCredential(KEY))
MESSAGES = [UserMessage(STORY)]
FIND = {
    "model": MODEL,
    "messages": MESSAGES,
    "tools": [ChatCompletionsToolDefinition(function=FunctionDefinition(name="find", parameters=SCHEMA))],
    "tool_choice": ChatCompletionsNamedToolChoice(function=ChatCompletionsNamedToolChoiceFunction(name="find")),
    "max_tokens": 300,
}


@part
def chat():
    assert "6" in client.complete(messages=MESSAGES, model=MODEL).choices[0].message.content


@part
def stream():
    chunks = client.complete(messages=MESSAGES, model=MODEL, stream=True)
    assert "6" in "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


@part
def parameters():
    messages = [SystemMessage("You count."), *MESSAGES]
    assert client.complete(messages=messages, model=MODEL, seed=1, temperature=0.7, model_extras={"top_k": 5}).choices


@part
def structured():
    answer = client.complete(
        messages=MESSAGES, model=MODEL, response_format=JsonSchemaFormat(name="a", schema=SCHEMA, strict=True)
    )
    assert json.loads(answer.choices[0].message.content)["name"] in ("Tom", "Ann")


@part
def tools():
    answer = caller.complete(**FIND)
    calls = answer.choices[0].message.tool_calls
    assert json.loads(calls[0].function.arguments)["name"] in ("Tom", "Ann")
    messages = [*MESSAGES, AssistantMessage(tool_calls=calls), ToolMessage("5", tool_call_id=calls[0].id)]
    assert caller.complete(messages=messages, model=MODEL, tools=FIND["tools"], max_tokens=50).choices


@part
def a_stream_of_tools():
    chunks = caller.complete(**FIND, stream=True)
    calls = [call for chunk in chunks for choice in chunk.choices for call in choice.delta.tool_calls or []]
    assert json.loads("".join(call.function.arguments for call in calls))["name"] in ("Tom", "Ann")


@part
def a_refusal():
    call = lambda: client.complete(messages=[UserMessage(LONG)], model=MODEL)  # noqa: E731
    assert fails(call, "HttpResponseError").status_code == 400


run()

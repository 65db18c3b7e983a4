# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#     "mistralai==3.7.0",
# ]
# ///
"""Mistral's client: `Mistral(server_url=…)`, without `/v1`."""

from typing import Literal

from mistralai.client import Mistral
from parts import DEMO, KEY, LONG, MESSAGES, MODEL, SCHEMA, TOOLS, fails, part, run
from pydantic import BaseModel

client = Mistral(server_url=DEMO, api_key=KEY)
FIND = {"type": "function", "function": {"name": "find", "description": "Finds.", "parameters": SCHEMA}}


class Name(BaseModel):
    """A name."""

    name: Literal["Tom", "Ann"]


@part
def chat():
    assert "6" in client.chat.complete(model=MODEL, messages=MESSAGES).choices[0].message.content


@part
async def asynchronous():
    answer = await client.chat.complete_async(model=MODEL, messages=MESSAGES, temperature=0.7)
    assert answer.choices[0].message.content


@part
def stream():
    chunks = client.chat.stream(model=MODEL, messages=MESSAGES)
    assert "6" in "".join(chunk.data.choices[0].delta.content or "" for chunk in chunks if chunk.data.choices)


@part
def structured():
    assert client.chat.parse(Name, model=MODEL, messages=MESSAGES).choices[0].message.parsed.name in ("Tom", "Ann")


@part
def tools():
    with Mistral(server_url=TOOLS, api_key=KEY) as caller:
        first = caller.chat.complete(model=MODEL, messages=MESSAGES, tools=[FIND], tool_choice="any", max_tokens=300)
        message = first.choices[0].message
        assert message.tool_calls[0].function.name == "find"
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "5", "name": "find"}
        assert caller.chat.complete(model=MODEL, messages=[*MESSAGES, message, result], tools=[FIND], max_tokens=50)


@part
def a_refusal():
    call = lambda: client.chat.complete(model=MODEL, messages=[{"role": "user", "content": LONG}])  # noqa: E731
    assert fails(call, "SDKError").status_code == 400


run()

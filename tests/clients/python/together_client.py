# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#     "together==3.1.1",
# ]
# ///
"""Together's client: `Together(base_url=…)`, without `/v1`."""

import json

from parts import DEMO, KEY, LONG, MESSAGES, MODEL, SCHEMA, STORY, TOOLS, fails, part, run
from together import Together

client = Together(base_url=DEMO, api_key=KEY)
FIND = {
    "model": MODEL,
    "messages": MESSAGES,
    "tools": [{"type": "function", "function": {"name": "find", "description": "Finds.", "parameters": SCHEMA}}],
    "tool_choice": {"type": "function", "function": {"name": "find"}},
    "max_tokens": 300,
}


@part
def chat():
    assert "6" in client.chat.completions.create(model=MODEL, messages=MESSAGES).choices[0].message.content


@part
def stream():
    chunks = client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    assert "6" in "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


@part
def completion():
    answer = client.completions.create(model=MODEL, prompt=STORY, max_tokens=8, repetition_penalty=1.1, top_k=5)
    assert answer.choices[0].text is not None


@part
def structured():
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, response_format=form)
    assert json.loads(answer.choices[0].message.content)["name"] in ("Tom", "Ann")


@part
def tools():
    caller = Together(base_url=TOOLS, api_key=KEY)
    answer = caller.chat.completions.create(**FIND)
    assert json.loads(answer.choices[0].message.tool_calls[0].function.arguments)["name"] in ("Tom", "Ann")


@part
def a_stream_of_tools():
    chunks = Together(base_url=TOOLS, api_key=KEY).chat.completions.create(**FIND, stream=True)
    calls = [call for chunk in chunks for choice in chunk.choices for call in choice.delta.tool_calls or []]
    assert json.loads("".join(call.function.arguments or "" for call in calls))["name"] in ("Tom", "Ann")


@part
def a_refusal():
    messages = [{"role": "user", "content": LONG}]
    call = lambda: client.chat.completions.create(model=MODEL, messages=messages)  # noqa: E731
    assert fails(call, "BadRequestError").status_code == 400


run()

# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#     "huggingface_hub==2.4.0",
# ]
# ///
"""Hugging Face's client: `InferenceClient(base_url=…)`. Its structured output is TGI's form."""

import json

from huggingface_hub import InferenceClient
from parts import DEMO, KEY, MESSAGES, MODEL, SCHEMA, part, run

client = InferenceClient(base_url=f"{DEMO}v1", api_key=KEY)


@part
def chat():
    assert "6" in client.chat_completion(MESSAGES, model=MODEL).choices[0].message.content


@part
def stream():
    chunks = client.chat_completion(MESSAGES, model=MODEL, stream=True)
    assert "6" in "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


@part
def parameters():
    assert client.chat_completion(MESSAGES, model=MODEL, presence_penalty=0.5, frequency_penalty=0.1, max_tokens=2000)


@part
def structured():
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}}
    answer = client.chat_completion(MESSAGES, model=MODEL, response_format=form)
    assert json.loads(answer.choices[0].message.content)["name"] in ("Tom", "Ann")


run()

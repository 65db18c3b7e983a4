# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#     "any-llm-sdk[openai]==1.40.2",
# ]
# ///
"""any-llm: the provider `openai` with an `api_base`."""

import any_llm
from parts import DEMO, KEY, MESSAGES, MODEL, STORY, part, run

OPTIONS = {"model": MODEL, "provider": "openai", "api_base": f"{DEMO}v1", "api_key": KEY}


@part
def chat():
    assert "6" in any_llm.completion(messages=MESSAGES, **OPTIONS).choices[0].message.content


@part
def stream():
    chunks = any_llm.completion(messages=MESSAGES, stream=True, **OPTIONS)
    assert "6" in "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


@part
def responses():
    assert any_llm.responses(input_data=STORY, **OPTIONS).output


run()

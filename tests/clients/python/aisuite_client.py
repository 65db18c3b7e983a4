# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#     "aisuite[openai]==0.2.0",
# ]
# ///
"""aisuite: the provider `openai` with a `base_url`."""

import aisuite
from parts import DEMO, KEY, MESSAGES, MODEL, part, run

client = aisuite.Client({"openai": {"base_url": f"{DEMO}v1", "api_key": KEY}})


@part
def chat():
    answer = client.chat.completions.create(model=f"openai:{MODEL}", messages=MESSAGES)
    assert "6" in answer.choices[0].message.content


@part
def sampling():
    messages = MESSAGES
    assert client.chat.completions.create(model=f"openai:{MODEL}", messages=messages, temperature=0.7, max_tokens=4000)


run()

# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#     "langfuse==5.0.4",
#     "openai==3.57.0",
# ]
# ///
"""Langfuse's wrapper of OpenAI's client."""

import os

from parts import DEMO, KEY, MESSAGES, MODEL, part, run

os.environ["LANGFUSE_TRACING_ENABLED"] = "false"
from langfuse.openai import openai


@part
def wrapped():
    c = openai.OpenAI(base_url=f"{DEMO}v1", api_key=KEY)
    assert (
        "6"
        in c.chat.completions.create(model=MODEL, messages=MESSAGES, name="x", metadata={"a": "b"})
        .choices[0]
        .message.content
    )


run()

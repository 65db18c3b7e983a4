# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = ["any-llm-sdk[openai]==1.40.2"]
# ///
"""any-llm: the provider `openai` with an `api_base`."""

import any_llm
from parts import DEMO, KEY, MESSAGES, MODEL, STORY, run, streamed

OPTIONS = {"model": MODEL, "provider": "openai", "api_base": f"{DEMO}v1", "api_key": KEY}


run(
    stream=lambda: "6" in streamed(any_llm.completion(messages=MESSAGES, stream=True, **OPTIONS)),
    chat=lambda: "6" in any_llm.completion(messages=MESSAGES, **OPTIONS).choices[0].message.content,
    responses=lambda: any_llm.responses(input_data=STORY, **OPTIONS).output,
)

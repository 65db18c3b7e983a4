# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#     "aisuite[openai]==0.2.0",
# ]
# ///
"""aisuite: a provider with `base_url`."""

import aisuite
from parts import DEMO, KEY, MODEL, STORY, part, run


@part
def chat():
    client = aisuite.Client({"openai": {"base_url": f"{DEMO}v1", "api_key": KEY}})
    assert (
        "6"
        in client.chat.completions.create(model=f"openai:{MODEL}", messages=[{"role": "user", "content": STORY}])
        .choices[0]
        .message.content
    )


run()

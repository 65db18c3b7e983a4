# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#     "any-llm-sdk[openai]==1.40.2",
# ]
# ///
"""any-llm: `completion(api_base=…)`."""

from any_llm import completion
from parts import DEMO, KEY, MODEL, STORY, part, run


@part
def chat():
    answer = completion(
        model=MODEL, provider="openai", api_base=f"{DEMO}v1", api_key=KEY, messages=[{"role": "user", "content": STORY}]
    )
    assert "6" in answer.choices[0].message.content


@part
def stream():
    chunks = completion(
        model=MODEL,
        provider="openai",
        api_base=f"{DEMO}v1",
        api_key=KEY,
        messages=[{"role": "user", "content": STORY}],
        stream=True,
    )
    assert "6" in "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


run()

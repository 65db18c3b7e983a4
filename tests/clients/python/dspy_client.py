# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#     "dspy==3.4.1",
# ]
# ///
"""DSPy: `dspy.LM("openai/NAME", api_base=…)`."""

import dspy
from parts import DEMO, KEY, MODEL, STORY, part, run

OPTIONS = {"api_base": f"{DEMO}v1", "api_key": KEY, "cache": False}


@part
def chat():
    assert "6" in str(dspy.LM(f"openai/{MODEL}", **OPTIONS)(STORY)[0])


@part
def more_tokens_than_left():
    assert dspy.LM(f"openai/{MODEL}", max_tokens=4000, **OPTIONS)(STORY)


@part
def responses():
    assert dspy.LM(f"openai/{MODEL}", model_type="responses", **OPTIONS)(STORY)


run()

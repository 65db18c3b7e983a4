# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = ["dspy==3.4.1"]
# ///
"""DSPy: `dspy.LM("openai/NAME", api_base=…)`."""

import dspy
from parts import DEMO, KEY, MODEL, STORY, run

OPTIONS = {"api_base": f"{DEMO}v1", "api_key": KEY, "cache": False}


run(
    chat=lambda: "6" in str(dspy.LM(f"openai/{MODEL}", **OPTIONS)(STORY)[0]),
    more_tokens_than_left=lambda: dspy.LM(f"openai/{MODEL}", max_tokens=4000, **OPTIONS)(STORY),
    responses=lambda: dspy.LM(f"openai/{MODEL}", model_type="responses", **OPTIONS)(STORY),
)

# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#     "guardrails-ai==0.11.0",
# ]
# ///
"""Guardrails: a guard calls LiteLLM with an `api_base`."""

from guardrails import Guard
from parts import DEMO, KEY, MESSAGES, MODEL, part, run


@part
def guard():
    answer = Guard()(model=f"openai/{MODEL}", api_base=f"{DEMO}v1", api_key=KEY, messages=MESSAGES)
    assert "6" in answer.raw_llm_output


run()

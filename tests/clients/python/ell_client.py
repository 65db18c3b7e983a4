# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#     "ell-ai[sqlite]==0.0.17",
# ]
# ///
"""ell: `openai.Client(base_url=…)`."""

import ell
import openai
from parts import DEMO, KEY, MODEL, STORY, part, run

client = openai.Client(base_url=f"{DEMO}v1", api_key=KEY)


@ell.simple(model=MODEL, client=client)
def answer():
    return STORY


@part
def chat():
    assert "6" in answer()


run()

# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#     "ell-ai[sqlite]==0.0.17",
# ]
# ///
"""ell: a client of OpenAI for `ell.simple`."""

import ell
import openai
from parts import DEMO, KEY, MODEL, STORY, part, run

client = openai.OpenAI(base_url=f"{DEMO}v1", api_key=KEY)


@ell.simple(model=MODEL, client=client)
def ask(story: str) -> str:
    """You count."""
    return story


@part
def simple():
    assert ask(STORY)


run()

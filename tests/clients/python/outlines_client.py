# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#     "outlines[openai]==1.3.3",
# ]
# ///
"""outlines: `from_vllm` with a client of OpenAI; its constraints are vLLM's `structured_outputs`."""

from typing import Literal

import openai
import outlines
from parts import DEMO, KEY, MODEL, STORY, part, run
from pydantic import BaseModel


class Apples(BaseModel):
    """Some apples."""

    name: Literal["Tom", "Ann"]


model = outlines.from_vllm(openai.OpenAI(base_url=f"{DEMO}v1", api_key=KEY), MODEL)


@part
def text():
    assert "6" in model(STORY)


@part
def schema():
    assert "name" in model(STORY, Apples)


@part
def choice():
    assert model(STORY, Literal["yes", "no"]) in ("yes", "no")


@part
def regex():
    assert len(model(STORY, outlines.regex("[0-9]{3}"))) == 3


run()

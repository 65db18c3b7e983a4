# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#     "agno==3.1.10",
#     "openai==3.57.0",
# ]
# ///
"""Agno (once phidata): `OpenAILike(base_url=…)`."""

from agno.agent import Agent
from agno.models.openai.like import OpenAILike
from apples import Apples
from parts import DEMO, KEY, MODEL, STORY, part, run


def model():
    return OpenAILike(id=MODEL, base_url=f"{DEMO}v1", api_key=KEY)


@part
def agent():
    assert "6" in Agent(model=model()).run(STORY).content


@part
def stream():
    assert list(Agent(model=model()).run(STORY, stream=True))


@part
def structured():
    assert Agent(model=model(), output_schema=Apples, use_json_mode=False).run(STORY).content


run()

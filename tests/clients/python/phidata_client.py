# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#     "phidata==2.7.10",
#     "openai==3.57.0",
# ]
# ///
"""phidata: `OpenAILike(base_url=…)`."""

from parts import DEMO, KEY, MODEL, STORY, part, run
from phi.agent import Agent
from phi.model.openai.like import OpenAILike


@part
def agent():
    assert "6" in Agent(model=OpenAILike(id=MODEL, base_url=f"{DEMO}v1", api_key=KEY)).run(STORY).content


run()

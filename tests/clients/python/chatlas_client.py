# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#     "chatlas==0.23.0",
#     "openai==3.57.0",
# ]
# ///
"""chatlas: `ChatOpenAICompletions(base_url=…)`."""

from chatlas import ChatOpenAICompletions
from parts import DEMO, KEY, MODEL, STORY, part, run


@part
def chat():
    assert "6" in str(ChatOpenAICompletions(base_url=f"{DEMO}v1", api_key=KEY, model=MODEL).chat(STORY, echo="none"))


run()

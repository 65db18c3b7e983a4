# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#     "langchain-litellm==0.11.2",
# ]
# ///
"""LangChain over LiteLLM: `ChatLiteLLM(api_base=…)`."""

from langchain_litellm import ChatLiteLLM
from parts import DEMO, KEY, MODEL, STORY, part, run


@part
def chat():
    assert "6" in ChatLiteLLM(model=f"openai/{MODEL}", api_base=f"{DEMO}v1", api_key=KEY).invoke(STORY).content


run()

# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#     "llama-index-llms-openai-like==0.8.1",
#     "llama-index-core==0.14.25",
# ]
# ///
"""LlamaIndex: `OpenAILike(api_base=…)`."""

from llama_index.llms.openai_like import OpenAILike
from parts import DEMO, KEY, MODEL, STORY, part, run


@part
def complete():
    assert "6" in OpenAILike(model=MODEL, api_base=f"{DEMO}v1", api_key=KEY, is_chat_model=True).complete(STORY).text


run()

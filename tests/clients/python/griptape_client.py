# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#     "griptape==1.13.0",
# ]
# ///
"""Griptape: `OpenAiChatPromptDriver(base_url=…)`."""

from griptape.common import PromptStack
from griptape.drivers.prompt.openai import OpenAiChatPromptDriver
from griptape.tokenizers import SimpleTokenizer
from parts import DEMO, KEY, MODEL, STORY, part, run


@part
def prompt():
    d = OpenAiChatPromptDriver(
        model=MODEL,
        base_url=f"{DEMO}v1",
        api_key=KEY,
        tokenizer=SimpleTokenizer(characters_per_token=4, max_input_tokens=512, max_output_tokens=200),
    )
    stack = PromptStack()
    stack.add_user_message(STORY)
    assert "6" in d.run(stack).to_text()


run()

# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = ["haystack-ai==3.4.1"]
# ///
"""Haystack: `OpenAIChatGenerator(api_base_url=…)`."""

from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.utils import Secret
from parts import DEMO, KEY, MODEL, STORY, run

generator = OpenAIChatGenerator(api_key=Secret.from_token(KEY), model=MODEL, api_base_url=f"{DEMO}v1")


run(
    chat=lambda: "6" in generator.run([ChatMessage.from_user(STORY)])["replies"][0].text,
    named_user=lambda: generator.run([ChatMessage.from_user(STORY, name="ann")])["replies"],
)

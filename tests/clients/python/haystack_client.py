# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#     "haystack-ai==3.4.1",
# ]
# ///
"""Haystack: `OpenAIChatGenerator(api_base_url=…)`."""

from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.utils import Secret
from parts import DEMO, KEY, MODEL, STORY, part, run

generator = OpenAIChatGenerator(api_key=Secret.from_token(KEY), model=MODEL, api_base_url=f"{DEMO}v1")


@part
def chat():
    assert "6" in generator.run([ChatMessage.from_user(STORY)])["replies"][0].text


@part
def named_user():
    assert generator.run([ChatMessage.from_user(STORY, name="ann")])["replies"]


run()

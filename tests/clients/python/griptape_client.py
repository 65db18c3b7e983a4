# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#     "griptape==1.13.0",
# ]
# ///
"""Griptape: `OpenAiChatPromptDriver(base_url=…)`."""

from griptape.drivers.prompt.openai import OpenAiChatPromptDriver
from griptape.structures import Agent
from parts import DEMO, KEY, MODEL, STORY, part, run


def driver(**options):
    return OpenAiChatPromptDriver(model=MODEL, base_url=f"{DEMO}v1", api_key=KEY, **options)


@part
def agent():
    assert Agent(prompt_driver=driver()).run(STORY).output.value


@part
def stream():
    assert Agent(prompt_driver=driver(), stream=True).run(STORY).output.value


run()

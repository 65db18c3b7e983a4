# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#     "instructor==1.17.0",
#     "anthropic>=2,<3",
# ]
# ///
"""instructor: `from_openai(OpenAI(base_url=…))`, in the modes that constrain answers."""

from typing import Literal

import anthropic
import instructor
import openai
from apples import Apples
from parts import DEMO, KEY, MESSAGES, MODEL, TOOLS, part, run
from pydantic import BaseModel


class Names(BaseModel):
    """Some names."""

    names: set[Literal["Tom", "Ann"]]


def completions(mode, base=DEMO):
    client = openai.OpenAI(base_url=f"{base}v1", api_key=KEY)
    return instructor.from_openai(client, mode=mode).chat.completions


@part
def json_schema():
    assert completions(instructor.Mode.JSON_SCHEMA).create(model=MODEL, messages=MESSAGES, response_model=Apples)


@part
def tools():
    assert completions(instructor.Mode.TOOLS, TOOLS).create(model=MODEL, messages=MESSAGES, response_model=Apples)


@part
def partial():
    answers = completions(instructor.Mode.JSON_SCHEMA).create_partial(
        model=MODEL, messages=MESSAGES, response_model=Apples
    )
    assert list(answers)[-1].name


@part
def a_set():
    assert completions(instructor.Mode.TOOLS, TOOLS).create(model=MODEL, messages=MESSAGES, response_model=Names)


@part
def anthropic_tools():
    client = instructor.from_anthropic(
        anthropic.Anthropic(base_url=TOOLS, api_key=KEY), mode=instructor.Mode.ANTHROPIC_TOOLS
    )
    assert client.messages.create(model=MODEL, messages=MESSAGES, max_tokens=300, response_model=Apples)


run()

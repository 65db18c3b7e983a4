# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = ["instructor==1.17.0", "anthropic>=2,<3"]
# ///
"""instructor: `from_openai(OpenAI(base_url=…))`, in the modes that constrain answers."""

from typing import Literal

import anthropic
import instructor
import openai
from apples import Apples
from parts import DEMO, KEY, MESSAGES, MODEL, TOOLS, run
from pydantic import BaseModel


class Names(BaseModel):
    """Some names."""

    names: set[Literal["Tom", "Ann"]]


def completions(mode, base=DEMO):
    client = openai.OpenAI(base_url=f"{base}v1", api_key=KEY)
    return instructor.from_openai(client, mode=mode).chat.completions


run(
    json_schema=lambda: completions(instructor.Mode.JSON_SCHEMA).create(
        model=MODEL, messages=MESSAGES, response_model=Apples
    ),
    tools=lambda: completions(instructor.Mode.TOOLS, TOOLS).create(
        model=MODEL, messages=MESSAGES, response_model=Apples
    ),
    partial=lambda: (
        list(
            completions(instructor.Mode.JSON_SCHEMA).create_partial(
                model=MODEL, messages=MESSAGES, response_model=Apples
            )
        )[-1].name
    ),
    a_set=lambda: completions(instructor.Mode.TOOLS, TOOLS).create(
        model=MODEL, messages=MESSAGES, response_model=Names
    ),
    anthropic_tools=lambda: instructor.from_anthropic(
        anthropic.Anthropic(base_url=TOOLS, api_key=KEY), mode=instructor.Mode.ANTHROPIC_TOOLS
    ).messages.create(model=MODEL, messages=MESSAGES, max_tokens=300, response_model=Apples),
)

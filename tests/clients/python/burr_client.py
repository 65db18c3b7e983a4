# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#     "burr==0.42.0",
#     "openai==3.57.0",
# ]
# ///
"""Burr, around OpenAI's client."""

import openai
from burr.core import ApplicationBuilder, State, action
from parts import DEMO, KEY, MESSAGES, MODEL, part, run


@action(reads=[], writes=["answer"])
def ask(state: State) -> State:
    c = openai.OpenAI(base_url=f"{DEMO}v1", api_key=KEY)
    return state.update(answer=c.chat.completions.create(model=MODEL, messages=MESSAGES).choices[0].message.content)


@part
def app():
    a = ApplicationBuilder().with_actions(ask).with_transitions(("ask", "ask")).with_entrypoint("ask").build()
    assert "6" in a.step()[2]["answer"]


run()

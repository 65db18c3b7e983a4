# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#     "portkey-ai==2.3.4",
# ]
# ///
"""Portkey: `Portkey(base_url=…)`."""

from parts import DEMO, KEY, MESSAGES, MODEL, part, run
from portkey_ai import Portkey


@part
def chat():
    c = Portkey(base_url=f"{DEMO}v1", api_key=KEY)
    assert "6" in c.chat.completions.create(model=MODEL, messages=MESSAGES).choices[0].message.content


run()

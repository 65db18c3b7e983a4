"""How a checkpoint's answers think: the texts around the thinking, and what the chat template does with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BEGIN: Final = "<think>"
END: Final = "</think>"
#: what a model writes between its thinking and its answer
GAP: Final = "\n\n"
#: the option of a chat template that turns thinking off
SWITCH: Final = "enable_thinking"


@dataclass(frozen=True, slots=True)
class Thinking:
    """The thinking of a checkpoint. `begun`: the prompt ends within it. `switch`: requests can turn it off."""

    begun: bool = False
    switch: bool = False

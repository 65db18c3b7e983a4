"""The texts that checkpoints write around tool calls and reasoning. A new format is a `ToolFormat` here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

#: the texts around the reasoning of an answer, and the text between reasoning and answer
REASONING_START: Final = "<think>"
REASONING_END: Final = "</think>"
REASONING_GAP: Final = "\n\n"
#: the option of a chat template that turns reasoning off
THINKING_OPTION: Final = "enable_thinking"


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """The reasoning of a checkpoint. `opened_by_prompt`: the prompt ends within it. `switch`: requests may end it."""

    opened_by_prompt: bool = False
    switch: bool = False


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """The format of the answers to a request."""

    format: str | None = None  # the name of the format of calls, None if no calls are allowed
    thinking: Literal["no", "may", "begun"] = "no"  # whether the answer may begin with reasoning, or begins within it
    names: Mapping[str, str] = field(default_factory=dict)  # the model's name of a tool -> the client's, if they differ

    @property
    def plain(self) -> bool:
        return self.format is None and self.thinking == "no"


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How calls of tools are written. A call has its arguments as a JSON object.

    An answer is a content or none, `opening`, a call, and for each further call `between` and that call.
    A call is `before_name`, its name, `after_name`, its arguments, `tail`.
    """

    name: str
    opening: str
    before_name: str
    after_name: str
    tail: str
    between: str

    def head(self, name: str) -> str:
        """A call up to its arguments."""
        return f"{self.before_name}{name}{self.after_name}"

    def written(self, *calls: tuple[str, str]) -> str:
        """Calls as the model writes them. `calls`: the name and arguments of each."""
        written = self.between.join(f"{self.head(name)}{arguments}{self.tail}" for name, arguments in calls)
        return f"{self.opening}{written}" if calls else ""


_FORMATS: Final = (
    ToolFormat(  # each call is a JSON object between tags; Hermes' format, too
        name="qwen3",
        opening="<tool_call>",
        before_name='\n{"name": "',
        after_name='", "arguments": ',
        tail="}\n</tool_call>",
        between="\n<tool_call>",
    ),
)
TOOL_FORMATS: Mapping[str, ToolFormat] = {tool_format.name: tool_format for tool_format in _FORMATS}

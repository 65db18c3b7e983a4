"""Tool calls and reasoning in answers: how a checkpoint writes them, how they are parsed. Knows no API, no torch.

A `ToolFormat` says how calls are written (`formats.py`). `OutputParser` parses an answer's text as it comes into
reasoning, content and calls, `parse_output` a whole answer. Both give the same for any cuts of the text.
`assistant_message` and `tool_message` make the messages of earlier turns as chat templates take them.
"""

from service.text.tools.calls import Tool, ToolUse, assistant_message, tool_message
from service.text.tools.formats import TOOL_FORMATS, AnswerFormat
from service.text.tools.output_parser import (
    ContentDelta,
    OutputEvent,
    OutputParser,
    ParsedOutput,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    parse_output,
)

__all__ = [
    "TOOL_FORMATS",
    "AnswerFormat",
    "ContentDelta",
    "OutputEvent",
    "OutputParser",
    "ParsedOutput",
    "ReasoningDelta",
    "Tool",
    "ToolCallDelta",
    "ToolCallEnd",
    "ToolCallStart",
    "ToolUse",
    "assistant_message",
    "parse_output",
    "tool_message",
]

"""Tool calls and thinking in answers: how a checkpoint writes them, how they are read. Knows no wire format, no torch.

A `ToolFormat` says how calls are written (`formats/`, one file each). `OutputParser` reads an answer's text as it comes
and tells what is thought, content or a call. `parse_output` reads a whole one. Both give the same for any cut.
`said` and `result` make the messages of earlier turns as chat templates take them.
"""

from service.text.tools.calls import Tool, ToolCall, ToolUse, assistant_message, parse_arguments, tool_message
from service.text.tools.events import (
    ContentDelta,
    OutputEvent,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)
from service.text.tools.formats import FORMATS, ToolFormat, format_named
from service.text.tools.reader import OutputFormat, OutputParser, ParsedOutput, gathered, parse_output
from service.text.tools.thinking import ReasoningFormat

__all__ = [
    "FORMATS",
    "OutputFormat",
    "OutputParser",
    "ParsedOutput",
    "ReasoningDelta",
    "ReasoningFormat",
    "Tool",
    "ToolCall",
    "ToolCallDelta",
    "ToolCallEnd",
    "ToolCallStart",
    "ToolFormat",
    "ToolUse",
    "assistant_message",
    "format_named",
    "gathered",
    "parse_arguments",
    "parse_output",
    "tool_message",
]

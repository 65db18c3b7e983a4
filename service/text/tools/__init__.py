"""Tool calls and thinking in answers: how a checkpoint writes them, how they are read. Knows no wire format, no torch.

A `ToolFormat` says how calls are written (`formats/`, one file each). `AnswerReader` reads an answer's text as it comes
and tells what is thought, content or a call. `read_answer` reads a whole one. Both give the same for any cut.
`said` and `result` make the messages of earlier turns as chat templates take them.
"""

from service.text.tools.calls import Tool, ToolCall, ToolUse, arguments_of, result, said
from service.text.tools.events import CallBegun, CallEnded, CallPiece, Content, Event, Thought
from service.text.tools.formats import FORMATS, ToolFormat, format_named
from service.text.tools.reader import AnswerReader, ReadAnswer, Reading, gathered, read_answer
from service.text.tools.thinking import Thinking

__all__ = [
    "FORMATS",
    "AnswerReader",
    "CallBegun",
    "CallEnded",
    "CallPiece",
    "Content",
    "Event",
    "ReadAnswer",
    "Reading",
    "Thinking",
    "Thought",
    "Tool",
    "ToolCall",
    "ToolFormat",
    "ToolUse",
    "arguments_of",
    "format_named",
    "gathered",
    "read_answer",
    "result",
    "said",
]

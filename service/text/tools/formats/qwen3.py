"""The format of Qwen3 and of Hermes: each call is a JSON object between tags."""

from __future__ import annotations

from service.text.tools.formats.interface import ToolFormat

QWEN3 = ToolFormat(
    name="qwen3",
    opening="<tool_call>",
    before_name='\n{"name": "',
    after_name='", "arguments": ',
    tail="}\n</tool_call>",
    between="\n<tool_call>",
)

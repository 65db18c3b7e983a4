"""The ways in which checkpoints write tool calls. A new one is a file and a line here."""

from __future__ import annotations

from collections.abc import Mapping

from service.text.tools.formats.interface import ToolFormat
from service.text.tools.formats.qwen3 import QWEN3

FORMATS: Mapping[str, ToolFormat] = {one.name: one for one in (QWEN3,)}


def format_named(name: str) -> ToolFormat:
    """The format of that name. KeyError if there is none."""
    return FORMATS[name]


__all__ = ["FORMATS", "ToolFormat", "format_named"]

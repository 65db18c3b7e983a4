"""Answers as JSON."""

from __future__ import annotations

from typing import Any

from fastapi.responses import JSONResponse
from pydantic_core import to_json


class JsonAnswer(JSONResponse):
    """Written by pydantic's core in less than half of the time of Python's own encoder. NaN is null."""

    def render(self, content: Any) -> bytes:
        """The bytes of the body."""
        return to_json(content, inf_nan_mode="null")

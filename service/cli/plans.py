"""Parses plans of the command line: a mode and its knobs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from service.errors import InvalidRequest

if TYPE_CHECKING:
    from service.decode.mode import DecodingMode


def parse_plan(text: str) -> DecodingMode:
    """The params of `mode knob=value …`."""
    from service.decode.registry import make_mode

    mode, *words = text.split() or [""]
    try:
        pairs = [word.split("=") for word in words]
        knobs = {name: value if value.isalpha() else json.loads(value) for name, value in pairs}
    except ValueError as error:
        raise InvalidRequest(f"plan is {text!r}, expected is text such as 'remask threshold=0.5'") from error
    return make_mode(mode, knobs)

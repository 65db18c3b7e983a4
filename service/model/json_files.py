"""Reads the JSON files of a checkpoint. `files.py` and `end_tokens.py` call this. Needs no torch."""

import json
from pathlib import Path
from typing import Any

from service.errors import CheckpointError


def parsed(file: Path) -> Any:
    """The JSON of a file. A pipe is refused: reading it may wait without end. OSError or ValueError."""
    if not file.is_file():
        raise FileNotFoundError(f"{file} is no file")
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_object(file: Path) -> dict[str, Any]:
    """The object in a file; empty if there is no such file. CheckpointError if it cannot be read."""
    if not file.is_file():
        return {}
    try:
        content = parsed(file)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{file} cannot be read: it is {content!r}, expected an object")
    return content

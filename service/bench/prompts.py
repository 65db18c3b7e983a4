"""The prompts of a calibration: lines of JSON with `prompt` and, for most scorers, `answer`. Knows no tokens."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Prompts:
    """The lines, in order, and a hash of them."""

    lines: tuple[dict[str, Any], ...]
    sha256: str


def read_prompts(path: Path, count: int | None = None) -> Prompts:
    """The first `count` lines of a file, or all. SettingsError names a line that is none."""
    try:
        texts = [text for text in path.read_text(encoding="utf-8").splitlines() if text.strip()]
    except OSError as error:
        raise SettingsError(f"the prompts {path} cannot be read: {error.strerror}", param="prompts") from None
    except ValueError:
        raise SettingsError(f"the prompts {path} are no text in UTF-8", param="prompts") from None
    if count is not None and count > len(texts):
        raise SettingsError(f"count is {count}, {path} has {len(texts)} lines", param="count")
    texts = texts[:count]
    if not texts:
        raise SettingsError(f"{path} holds no prompts", param="prompts")
    lines = tuple(_line(text, f"{path}, line {number}") for number, text in enumerate(texts, 1))
    return Prompts(lines, hashlib.sha256("\n".join(texts).encode()).hexdigest())


def _line(text: str, where: str) -> dict[str, Any]:
    try:
        line = json.loads(text)
    except ValueError as error:
        raise SettingsError(f"{where} is not JSON: {error}", param="prompts") from None
    if not isinstance(line, dict) or not isinstance(line.get("prompt"), str) or not line["prompt"]:
        raise SettingsError(f"{where} is {text[:80]}, an object with the text `prompt` is expected", param="prompts")
    return line

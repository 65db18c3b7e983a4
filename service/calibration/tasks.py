"""The prompts of a calibration: lines of JSON with `prompt` and, for most scorers, `answer`, as tasks for an engine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from service.calibration.scorers import Scorer
from service.errors import SettingsError
from service.text import TextCodec


@dataclass(frozen=True, slots=True)
class Prompts:
    """The lines, in order, and a hash of them."""

    lines: tuple[dict[str, Any], ...]
    sha256: str


@dataclass(frozen=True, slots=True)
class PromptTask:
    """A prompt as token ids, and whether a completion's ids answer it."""

    prompt_token_ids: tuple[int, ...]
    is_right: Callable[[tuple[int, ...]], bool]


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


def tasks_of(
    codec: TextCodec, lines: Sequence[Mapping[str, Any]], scorer: Scorer, *, raw: bool = False
) -> list[PromptTask]:
    """A task for each line. Prompts are chats of one message; with `raw`, or without a template, they stay texts."""
    encode = codec.encode if raw or not codec.has_chat_template else partial(_encode_chat, codec)
    return [PromptTask(tuple(encode(line["prompt"])), partial(_is_right, codec, scorer, line)) for line in lines]


def _encode_chat(codec: TextCodec, text: str) -> list[int]:
    return codec.encode_chat([{"role": "user", "content": text}])


def _is_right(codec: TextCodec, scorer: Scorer, line: Mapping[str, Any], answer: tuple[int, ...]) -> bool:
    return bool(scorer(line, codec.decode(answer)))

"""Prompts of `/v1/score` as token ids: a text or a chat with marked positions to be scored.

The texts between two marks are encoded separately.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from service.errors import InvalidRequest
from service.text.codec import TextCodec

#: stands for a position to be scored
SCORED: Final = -1


def scored_text_ids(codec: TextCodec, text: str, mark: str | None) -> tuple[int, ...]:
    """A text's ids. Without a mark, the position after the text is scored. InvalidRequest if the mark is not in it."""
    _check(mark, [text])
    return _ids(text, mark, codec.encode)


def scored_chat_ids(codec: TextCodec, messages: Sequence[Mapping[str, str]], mark: str | None) -> tuple[int, ...]:
    """A chat's ids. Without a mark, the first position of the answer is scored.

    Marks count in contents only. After an assistant's last message no beginning of an answer follows.
    InvalidRequest if no content has the mark, or if the template refuses the messages.
    """
    if mark is None:
        return (*codec.encode_chat(messages), SCORED)
    _check(mark, [message["content"] for message in messages])
    private_mark = f"\uf8ff{secrets.randbelow(10**24):024}\uf8ff"  # only contents have it, not the template
    changed = [{**message, "content": message["content"].replace(mark, private_mark)} for message in messages]
    answer = messages[-1]["role"] != "assistant"
    return _ids(codec.render(changed, answer=answer), private_mark, codec.encode_rendered)


def _check(mark: str | None, texts: Sequence[str]) -> None:
    if mark is not None and not any(mark in text for text in texts):
        raise InvalidRequest(f"mark is {mark[:80]!r}, which the text does not have", param="mark")


def _ids(text: str, mark: str | None, encode: Callable[[str], list[int]]) -> tuple[int, ...]:
    first, *rest = [text, ""] if mark is None else text.split(mark)
    ids = encode(first) if first else []
    for part in rest:
        ids = [*ids, SCORED, *(encode(part) if part else [])]
    return tuple(ids)

"""A pinned text with marked places as token ids. The parts between two marks are encoded each by itself."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from service.errors import InvalidRequest
from service.text.codec import TextCodec

#: the id of a place
PLACE: Final = -1


def pinned_text(codec: TextCodec, text: str, mark: str | None) -> tuple[int, ...]:
    """A text's ids. Without a mark, the one place is behind the text. InvalidRequest if the mark is not in it."""
    _check(mark, [text])
    return _joined(text, mark, codec.encode)


def pinned_chat(codec: TextCodec, messages: Sequence[Mapping[str, str]], mark: str | None) -> tuple[int, ...]:
    """A chat's ids. Without a mark, the one place is the beginning of the answer.

    Marks count in contents only. After an assistant's last message no beginning of an answer follows.
    InvalidRequest if no content has the mark, or if the template refuses the messages.
    """
    if mark is None:
        return (*codec.encode_chat(messages), PLACE)
    _check(mark, [message["content"] for message in messages])
    hidden = f"\uf8ff{secrets.randbelow(10**24):024}\uf8ff"  # the template's own text has no marks
    changed = [{**message, "content": message["content"].replace(mark, hidden)} for message in messages]
    answer = messages[-1]["role"] != "assistant"
    return _joined(codec.render(changed, answer=answer), hidden, codec.encode_rendered)


def _check(mark: str | None, texts: Sequence[str]) -> None:
    if mark is not None and not any(mark in text for text in texts):
        raise InvalidRequest(f"mark is {mark[:80]!r}, which the text does not have", param="mark")


def _joined(text: str, mark: str | None, encode: Callable[[str], list[int]]) -> tuple[int, ...]:
    first, *others = [text, ""] if mark is None else text.split(mark)
    ids = encode(first) if first else []
    for part in others:
        ids = [*ids, PLACE, *(encode(part) if part else [])]
    return tuple(ids)

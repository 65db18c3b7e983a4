"""Messages as pickles, for pairs of sockets that a process and its child have inherited. No others may take them.

A pickle runs code of its sender's choice, who is the other half of this program here. What others can reach takes
`messagepack.py`.

Some data crosses often. Python pickles a frozen dataclass with slots by walking over its fields, on both sides. It
names each class by its module, which the other side imports again. Both take longer than all else that is done to a
small message.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from collections.abc import Callable, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, TypeVar

_T = TypeVar("_T", bound=type[Any])


class Pickled:
    """A codec of frames (`frames.py`)."""

    def encode(self, message: object) -> bytes:
        """A message."""
        return pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)

    def content(self, messages: Sequence[bytes]) -> bytes:
        """The content of a frame with these messages."""
        return b"".join(messages)

    def decode(self, content: bytes) -> list[Any]:
        """The messages of a frame."""
        unread, messages = io.BytesIO(content), []
        while unread.tell() < len(content):
            messages.append(pickle.load(unread))  # noqa: S301 - from the other half of this program
        return messages


PICKLED = Pickled()

#: the extension codes of pickle (PEP 307) that are for private use
_CODES = range(240, 256)


def sent_often(kind: _T) -> _T:
    """Decorates a dataclass: it is pickled as a call with its values, in the order of its fields.

    The last values are left out as long as each is its field's default. ValueError if the class cannot be called so,
    or has fewer than two fields.
    """
    given = fields(kind)
    if len(given) < 2 or not all(one.init and not one.kw_only for one in given):
        raise ValueError(f"{kind.__name__} cannot be made of its values in their order")
    values = attrgetter(*(one.name for one in given))
    last_first = [(number, one.default) for number, one in enumerate(given, 1)][::-1]

    def reduce(self: Any) -> tuple[object, ...]:
        sent = values(self)
        for number, default in last_first:
            if sent[number - 1] is not default:
                return kind, sent[:number]
        return kind, ()

    kind.__reduce__ = reduce  # type: ignore[assignment]  # a method, once it is in its class
    return kind


def numbered(code: int) -> Callable[[_T], _T]:
    """Decorates a class: pickles name it by a number, so it is loaded without a look for its module.

    The module must be imported where a pickle is loaded. `code`: 240 to 255. ValueError for another one, or if two
    classes have it.
    """
    if code not in _CODES:
        raise ValueError(f"code is {code}, allowed are {_CODES[0]} to {_CODES[-1]}")

    def register(kind: _T) -> _T:
        copyreg.add_extension(kind.__module__, kind.__qualname__, code)
        return kind

    return register

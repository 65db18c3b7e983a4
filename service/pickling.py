"""Data that crosses between processes often.

Python pickles a frozen dataclass with slots by walking over its fields, on both sides. That takes longer than all else
that is done to a small message.
"""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter
from typing import Any, TypeVar

_T = TypeVar("_T", bound=type[Any])


def sent_often(kind: _T) -> _T:
    """Decorates a dataclass: it is pickled as a call with its values, in the order of its fields.

    ValueError if it cannot be called so, or has fewer than two fields.
    """
    given = fields(kind)
    if len(given) < 2 or not all(one.init and not one.kw_only for one in given):
        raise ValueError(f"{kind.__name__} cannot be made of its values in their order")
    values = attrgetter(*(one.name for one in given))

    def reduce(self: Any) -> tuple[object, ...]:
        return kind, values(self)

    kind.__reduce__ = reduce  # type: ignore[assignment]  # a method, once it is in its class
    return kind

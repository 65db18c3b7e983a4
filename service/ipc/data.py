"""The base of the data that crosses between processes: frozen values whose private fields are in no `repr`.

A value travels as the array of its fields. A type that is one of several has a `tag`.
"""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Annotated, Any, TypeVar, get_type_hints

from msgspec import Meta, Struct

_T = TypeVar("_T")
_PRIVATE = Meta(extra={"private": True})

#: a field with words or tokens of a prompt or an answer. `repr` leaves it out, since it may get into a log.
Private = Annotated[_T, _PRIVATE]


class Data(Struct, frozen=True, array_like=True):
    """The base of all such values."""

    def __repr__(self) -> str:
        fields = (f"{name}={getattr(self, name)!r}" for name in _public(type(self)))
        return f"{type(self).__name__}({', '.join(fields)})"


@lru_cache
def _public(kind: type[Data]) -> list[str]:
    hints: dict[str, Any] = get_type_hints(kind, include_extras=True)
    return [name for name in kind.__struct_fields__ if _PRIVATE not in getattr(hints[name], "__metadata__", ())]


class Arrival(float):
    """The moment of a request's arrival at its ingress, in seconds of this process's monotonic clock.

    The clocks of two machines differ, so the seconds that have passed are sent. The receiver subtracts them from its
    own.
    """

    __slots__ = ()

    @classmethod
    def now(cls) -> Arrival:
        return cls(time.monotonic())

    @classmethod
    def ago(cls, seconds: float) -> Arrival:
        return cls(time.monotonic() - seconds)

    def waited_s(self) -> float:
        return time.monotonic() - self

"""What the data that crosses between processes is made of: frozen values whose private fields stand in no `repr`.

A value travels as the array of its fields (`messagepack.py`), and is decoded by the types of its class. A type that
is one of several has a `tag`.
"""

from __future__ import annotations

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
        shown = (f"{name}={getattr(self, name)!r}" for name in _shown(type(self)))
        return f"{type(self).__name__}({', '.join(shown)})"


@lru_cache
def _shown(kind: type[Data]) -> list[str]:
    hints: dict[str, Any] = get_type_hints(kind, include_extras=True)
    return [name for name in kind.__struct_fields__ if _PRIVATE not in getattr(hints[name], "__metadata__", ())]

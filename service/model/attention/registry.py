"""The implementations of attention there are, by name."""

from __future__ import annotations

from collections.abc import Callable

from service.errors import SettingsError
from service.model.attention.cache import PagedCache
from service.model.attention.eager import EagerAttention
from service.model.attention.interface import Attention

#: A new kernel is one file and one line here.
IMPLEMENTATIONS: dict[str, Callable[[PagedCache], Attention]] = {"eager": EagerAttention}


def attention_for(cache: PagedCache, name: str = "eager") -> Attention:
    """The named implementation over a cache. SettingsError for a name that is none."""
    if name not in IMPLEMENTATIONS:
        raise SettingsError(f"attention is {name!r}, allowed are {', '.join(sorted(IMPLEMENTATIONS))}")
    return IMPLEMENTATIONS[name](cache)

"""The attention backends by name, and the choice of `auto`."""

import logging
from collections.abc import Mapping

import torch

from service.errors import SettingsError
from service.model.attention.eager import EagerBackend
from service.model.attention.interface import AttentionBackend, PagedCache
from service.model.attention.triton import TritonBackend

_log = logging.getLogger(__name__)

#: The best backend that runs here.
AUTO = "auto"

#: CONTRIBUTING.md tells how a backend is added.
ATTENTION_BACKENDS: Mapping[str, type[EagerBackend | TritonBackend]] = {"eager": EagerBackend, "triton": TritonBackend}


def attention_backend(cache: PagedCache, name: str = AUTO) -> AttentionBackend:
    """The named backend over a cache. SettingsError as in `resolve_backend`."""
    return ATTENTION_BACKENDS[resolve_backend(name, cache.device, cache.dtype)](cache)


def resolve_backend(name: str, device: torch.device, dtype: torch.dtype) -> str:
    """The name of the backend that a setting stands for: `auto` is `triton` on CUDA where it runs, `eager` elsewhere.

    SettingsError for a name that no backend has, or a backend that cannot run here. It names the allowed ones.
    """
    if name != AUTO:
        if name not in ATTENTION_BACKENDS:
            allowed = ", ".join(sorted([AUTO, *ATTENTION_BACKENDS]))
            raise SettingsError(f"attention is {name!r}, allowed are {allowed}", param="attention")
        if problem := ATTENTION_BACKENDS[name].unavailable(device, dtype):
            raise SettingsError(f"attention is {name!r}, but {problem}; {AUTO} and eager work here", param="attention")
        return name
    if device.type != "cuda":
        return "eager"
    problem = TritonBackend.unavailable(device, dtype)
    if problem is not None:
        _log.warning("attention is eager, which is slow on a GPU: for triton, %s", problem)
    return "triton" if problem is None else "eager"

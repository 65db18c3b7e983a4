"""The implementations of attention there are, by name, and which of them `auto` is."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from sysconfig import get_paths

import torch

from service.errors import SettingsError
from service.model.attention.cache import PagedCache
from service.model.attention.eager import EagerBackend
from service.model.attention.interface import AttentionBackend

_log = logging.getLogger(__name__)

#: The best of those that run here.
AUTO = "auto"


def _triton(cache: PagedCache) -> AttentionBackend:
    from service.model.attention.paged import TritonBackend

    return TritonBackend(cache)


#: A new kernel is one file and one line here.
IMPLEMENTATIONS: dict[str, Callable[[PagedCache], AttentionBackend]] = {"eager": EagerBackend, "triton": _triton}


def attention_backend(cache: PagedCache, name: str = AUTO) -> AttentionBackend:
    """The named implementation over a cache. Raises what `resolve_backend` raises."""
    return IMPLEMENTATIONS[resolve_backend(name, cache.keys.device, cache.keys.dtype)](cache)


def resolve_backend(name: str, device: torch.device, dtype: torch.dtype) -> str:
    """The implementation that a name stands for. Raises what `check_backend` raises.

    `auto` is `triton` on CUDA where Triton is installed, `eager` elsewhere.
    """
    check_backend(name, device, dtype)
    if name != AUTO or device.type != "cuda":
        return "eager" if name == AUTO else name
    problem = _why_no_triton(device, dtype)
    if problem is not None:
        _log.warning("attention is eager, which is slow on a GPU: for triton, %s", problem)
    return "triton" if problem is None else "eager"


def check_backend(name: str, device: torch.device, dtype: torch.dtype) -> None:
    """SettingsError, with what there is, for an implementation that there is not."""
    if name not in (AUTO, *IMPLEMENTATIONS):
        known = ", ".join(sorted([AUTO, *IMPLEMENTATIONS]))
        raise SettingsError(f"attention is {name!r}, allowed are {known}", param="attention")
    problem = _why_no_triton(device, dtype) if name == "triton" else None
    if problem is not None:
        raise SettingsError(f"attention is 'triton', but {problem}; {AUTO} and eager work here", param="attention")


def has_triton(device: torch.device) -> bool:
    """Whether Triton's kernels run on a device: it is installed, and the device is CUDA or Triton interprets."""
    return find_spec("triton") is not None and (device.type == "cuda" or _interprets())


def _why_no_triton(device: torch.device, dtype: torch.dtype) -> str | None:
    if find_spec("triton") is None:
        return "the package triton is not installed here (pip install '.[gpu]')"
    if not has_triton(device):
        return f"its kernels need a CUDA device, not {device.type} (or TRITON_INTERPRET=1, which is slow)"
    if device.type == "cuda" and dtype == torch.float64:
        return "its kernels have no float64 on CUDA"
    return None if _interprets() else _why_no_compiler()


def _why_no_compiler() -> str | None:
    """Triton compiles what starts a kernel from the host, by a C compiler with Python's headers."""
    if not (os.environ.get("CC") or which("gcc") or which("clang")):
        return "Triton finds no C compiler here (gcc, clang or CC)"
    headers = Path(get_paths()["include"]) / "Python.h"
    return None if headers.is_file() else f"Triton needs Python's headers, and there is no {headers}"


def _interprets() -> bool:
    return os.environ.get("TRITON_INTERPRET", "0") not in {"", "0", "false", "off"}

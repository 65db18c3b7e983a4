"""Spoils what an idle engine keeps from forward to forward: later requests must read nothing of it."""

from collections.abc import Iterator
from typing import Any

import torch

from service.engine import Engine


def spoil(engine: Engine) -> int:
    """Every number of pages and buffers becomes NaN, every byte of tables 255. Returns the number of such tensors."""
    kept = {tensor.data_ptr(): tensor for tensor in _tensors(engine._runner, set())}
    for tensor in kept.values():
        if tensor.is_floating_point():
            tensor.fill_(torch.nan)
        elif tensor.dtype == torch.uint8:
            tensor.fill_(255)
    return len(kept)


def _tensors(of: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    """The tensors in objects of `service` and in containers, but no network's."""
    if id(of) in seen or isinstance(of, (torch.nn.Module, type)):
        return
    seen.add(id(of))
    if isinstance(of, torch.Tensor):
        yield of
    elif isinstance(of, (dict, list, tuple, set)):
        for part in of.values() if isinstance(of, dict) else of:
            yield from _tensors(part, seen)
    elif type(of).__module__.startswith("service."):
        slots = [name for base in type(of).__mro__ for name in getattr(base, "__slots__", ())]
        for part in [*getattr(of, "__dict__", {}).values(), *(getattr(of, name, None) for name in slots)]:
            yield from _tensors(part, seen)

"""Spoils what an idle engine keeps from forward to forward: later requests must read nothing of it."""

from collections.abc import Iterator
from typing import Any

import torch

from service.engine import Engine


def spoil(engine: Engine) -> int:
    """Numbers of pages and buffers become NaN, bytes of tables 255, states no tokens. -> the number of such tensors."""
    tensors = {tensor.data_ptr(): tensor for tensor in _tensors(engine._runner, set())}
    engine._runner.model.states.tokens.fill_(2**31 - 1)
    for tensor in tensors.values():
        if tensor.is_floating_point():
            tensor.fill_(torch.nan)
        elif tensor.dtype == torch.uint8:
            tensor.fill_(255)
    return len(tensors)


def _tensors(owner: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    """The tensors in objects of `service` and in containers, but no network's."""
    if id(owner) in seen or isinstance(owner, (torch.nn.Module, type)):
        return
    seen.add(id(owner))
    if isinstance(owner, torch.Tensor):
        yield owner
    elif isinstance(owner, (dict, list, tuple, set)):
        for part in owner.values() if isinstance(owner, dict) else owner:
            yield from _tensors(part, seen)
    elif type(owner).__module__.startswith("service."):
        slots = [name for base in type(owner).__mro__ for name in getattr(base, "__slots__", ())]
        for part in [*getattr(owner, "__dict__", {}).values(), *(getattr(owner, name, None) for name in slots)]:
            yield from _tensors(part, seen)

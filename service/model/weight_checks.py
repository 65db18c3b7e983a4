"""Checks the numbers of weights while they are read: finite, and not zero throughout. Else every answer would be wrong.

`checkpoint.py` and `weight_update.py` call this.
"""

import logging
import re
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

import torch
from torch import Tensor

from service.errors import CheckpointError
from service.model.weight_mapping import WeightSource

_log = logging.getLogger(__name__)

_BIAS = re.compile(r"bias$")
#: the last matrix of a branch: it is zero in a layer that was just added, which changes nothing
_LAST = re.compile(r"\.(o_proj|dense|down_proj)(\.weight\w*)?$")
#: the experts of a layer, of which some may be pruned
_EXPERT = re.compile(r"\.experts\.\d+\.")
_SHOWN = 3


class CheckedWeights:
    """The weights of a source. Each one that is read is checked, and `finish` reports what was found.

    `dtype`: the type in which the weights are served.
    """

    def __init__(self, path: Path, source: WeightSource, dtype: torch.dtype) -> None:
        self._path, self._source, self._dtype = path, source, dtype
        self._infinite, self._zero = list[str](), list[str]()

    @property
    def names(self) -> Collection[str]:
        return self._source.names

    def read(self, name: str) -> Tensor:
        weight = self._source.read(name)
        if not weight.is_meta and weight.numel():
            bounds = _bounds(weight, self._dtype)
            if not bounds.isfinite().all():
                self._infinite.append(name)
            elif not bounds.any() and not _BIAS.search(name):
                self._zero.append(name)
        return weight

    def finish(self) -> None:
        """CheckpointError that names weights with which every answer is wrong. Logs zeros that may be right."""
        if self._infinite:
            raise CheckpointError(
                f"{self._path}: {self._infinite[0]!r} has numbers that are not finite as {self._dtype}"
            )
        all_names, zero = (Counter(map(_of_layer, names)) for names in (self.names, self._zero))
        empty = [
            name
            for name in self._zero
            if zero[_of_layer(name)] == all_names[_of_layer(name)] and not _LAST.search(name)
        ]
        if empty:
            raise CheckpointError(f"{self._path}: {_listed(empty)}, as in a save without numbers")
        if self._zero:
            _log.warning("%s: %s", self._path, _listed(self._zero))


def _bounds(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """The least and the greatest number, `[2]`, in the served type. Of 8 bits only whether they are zero counts."""
    if weight.is_floating_point() and weight.itemsize > 1:
        return torch.stack(weight.aminmax()).double().to(dtype)
    return torch.stack((weight.view(torch.int8) if weight.itemsize == 1 else weight).aminmax()) != 0


def _of_layer(name: str) -> str:
    """The name of a weight without the number of its expert."""
    return _EXPERT.sub(".experts.", name)


def _listed(names: Sequence[str]) -> str:
    names = list(dict.fromkeys(names))
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"zero throughout: {', '.join(map(repr, names[:_SHOWN]))}{more}"

"""Paged attention in torch's own operations: the pages that a batch of rows reads are copied, then it is one call.

Runs on every device; a kernel that reads pages where they lie is faster on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from service.model.attention.batch import Rows
from service.model.attention.cache import PagedCache
from service.model.attention.interface import RowKv
from service.model.attention.shared import SharedBatch
from service.model.attention.single import SingleBatch
from service.model.attention.units import Limits, Unit, batches, singles
from service.model.transfer import send

#: Tokens of a unit at most. A unit's own part is computed for all pairs of its tokens, seen or not.
_TILE = 256
#: Tokens read in vain that take as long as a call of torch's operations: a CPU is slow to read, a GPU to be called.
_WASTE = {"cpu": 512}
_WASTE_ELSEWHERE = 1 << 16


class EagerBackend:
    """An `AttentionBackend` over a cache."""

    def __init__(self, cache: PagedCache) -> None:
        self._cache = cache
        size, device = cache.block_size, cache.keys.device.type
        waste = _WASTE.get(device, _WASTE_ELSEWHERE)
        self._limits = Limits(rows=max(1, _TILE // size), waste=waste // size)

    def prepare(self, places: Sequence[RowKv], width: int | None = None) -> EagerForward:
        """The attention of a forward. A `width` makes every row a unit of its own, all in one batch."""
        divided = batches(places, self._limits) if width is None else [singles(places)]
        return EagerForward(self._cache, places, divided, width)


class EagerForward:
    """The attention of one forward."""

    def __init__(
        self, cache: PagedCache, places: Sequence[RowKv], divided: Sequence[Sequence[Unit]], width: int | None
    ) -> None:
        self._cache = cache
        self.order = [n for units in divided for unit in units for n in range(unit.first, unit.first + unit.num_rows)]
        spare, targets = iter(cache.spare), dict[int, int]()
        self._batches: list[SingleBatch | SharedBatch] = []
        for units in divided:
            targets |= _pages_to_write(units, places, spare)
            batch = (
                SingleBatch.of(units, [targets[unit.first] for unit in units], cache, width)
                if all(unit.num_rows == 1 and unit.first in targets for unit in units)
                else SharedBatch.of(units, places, cache)
            )
            start = self._batches[-1].rows.stop if self._batches else 0
            self._batches.append(replace(batch, rows=slice(start, start + batch.rows.stop)))
        written = [slot for slot, number in enumerate(self.order) if number in targets]
        device = cache.keys.device
        self._written = send(np.array(written, np.int64), device) if len(written) < len(places) else None
        self._targets = send(np.array([targets[self.order[slot]] for slot in written], np.int64), device)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q `[R, L, heads, D]`, k and v `[R, L, kv_heads, D]` -> `[R, L, heads * D]`."""
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        if self._targets.numel():
            for pages, own in ((keys, k), (values, v)):
                pages.index_copy_(
                    0, self._targets, own if self._written is None else own.index_select(0, self._written)
                )
        rows = Rows(q, k, v, q.new_empty(q.shape))
        for batch in self._batches:
            batch(keys, values, rows if len(self._batches) == 1 else rows.part(batch.rows))
        return rows.seen.flatten(2)


def _pages_to_write(units: Iterable[Unit], places: Sequence[RowKv], spare: Iterator[int]) -> dict[int, int]:
    """The page of every row that writes one: rows of final blocks, and rows alone while there are spare pages."""
    targets = {}
    for unit in units:
        for number in range(unit.first, unit.first + unit.num_rows):
            place = places[number]
            page = place.pages[place.index] if place.keeps else next(spare, None) if unit.num_rows == 1 else None
            if page is not None:
                targets[number] = page
    return targets

"""The eager backend: paged attention in torch's own operations. It copies the pages that a batch of rows reads.

Runs on every device. A kernel that reads pages where they lie is faster on a GPU (`triton.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from service.model.attention.eager_batches import BatchRows, PrivateBatch, SharedPrefixBatch
from service.model.attention.interface import PagedCache, RowKv
from service.model.attention.shared_prefix import BatchLimits, PrefixUnit, batches, single_units
from service.model.transfer import to_device_async

#: The most tokens of a unit. A unit's rows are computed for all pairs of their tokens, seen or not.
_MAX_TOKENS = 256
#: Padding, in tokens, that costs as much as one more kernel launch. Small on a CPU (slow reads), large on a GPU (slow
#: launches).
_PADDING = {"cpu": 512}
_PADDING_ELSEWHERE = 1 << 16


class EagerBackend:
    """An `AttentionBackend`."""

    def __init__(self, cache: PagedCache) -> None:
        self._cache = cache
        size, device = cache.block_size, cache.keys.device.type
        padding = _PADDING.get(device, _PADDING_ELSEWHERE)
        self._limits = BatchLimits(rows=max(1, _MAX_TOKENS // size), padding=padding // size)

    @staticmethod
    def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:  # noqa: ARG004
        """It runs everywhere."""
        return None

    def prepare(self, rows: Sequence[RowKv], width: int | None = None) -> EagerForward:
        """As `AttentionBackend`. With a `width` every row is a unit of its own, all in one batch."""
        units = batches(rows, self._limits) if width is None else [single_units(rows)]
        return EagerForward(self._cache, rows, units, width)


class EagerForward:
    """An `AttentionForward`. `batches`: the units of each batch."""

    def __init__(
        self, cache: PagedCache, rows: Sequence[RowKv], batches: Sequence[Sequence[PrefixUnit]], width: int | None
    ) -> None:
        self._cache = cache
        self.order = [number for units in batches for unit in units for number in unit.rows]
        spare, targets = iter(cache.spare), dict[int, int]()
        self._batches: list[PrivateBatch | SharedPrefixBatch] = []
        for units in batches:
            targets |= _pages_to_write(units, rows, spare)
            batch = (
                PrivateBatch.of(units, [targets[unit.first] for unit in units], cache, width)
                if all(unit.num_rows == 1 and unit.first in targets for unit in units)
                else SharedPrefixBatch.of(units, rows, cache)
            )
            start = self._batches[-1].rows.stop if self._batches else 0
            self._batches.append(replace(batch, rows=slice(start, start + batch.rows.stop)))
        written = [slot for slot, number in enumerate(self.order) if number in targets]
        device = cache.keys.device
        self._written = to_device_async(np.array(written, np.int64), device) if len(written) < len(rows) else None
        self._targets = to_device_async(np.array([targets[self.order[slot]] for slot in written], np.int64), device)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """As `AttentionForward`."""
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        if self._targets.numel():
            for pages, new in ((keys, k), (values, v)):
                blocks = new if self._written is None else new.index_select(0, self._written)
                pages.index_copy_(0, self._targets, blocks)
        rows = BatchRows(q, k, v, q.new_empty(q.shape))
        for batch in self._batches:
            batch(keys, values, rows if len(self._batches) == 1 else rows.part(batch.rows))
        return rows.out.flatten(2)


def _pages_to_write(units: Iterable[PrefixUnit], rows: Sequence[RowKv], spare: Iterator[int]) -> dict[int, int]:
    """The page that each row writes: rows of final blocks, and single rows while there are spare pages."""
    targets = {}
    for unit in units:
        for number in unit.rows:
            row = rows[number]
            page = row.pages[row.index] if row.writes_kv else next(spare, None) if unit.num_rows == 1 else None
            if page is not None:
                targets[number] = page
    return targets

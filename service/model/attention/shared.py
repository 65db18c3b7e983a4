"""A batch of units of several rows: the states of a block, the blocks of a prompt.

The pages before a unit are read once for all its rows and are one part of the softmax. The rows themselves are the
other part, masked by who may see whom; their keys are taken as they are and are on no page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from service.model.attention.batch import Layout, Rows, mask_of, page_mask
from service.model.attention.cache import PagedCache
from service.model.attention.interface import RowKv
from service.model.attention.parts import attend, merge
from service.model.attention.units import Unit
from service.model.transfer import send


@dataclass(frozen=True, slots=True)
class SharedBatch:
    """Units of as many rows.

    `pages` `[units * P]`: what they read, None for units at the beginning of their sequences. `prefix_mask`
    `[units, 1, 1, P * L]` is for these, None if all units read P pages. `own_mask` `[units or 1, 1, group * T, T]` is
    for the rows' own keys, where T is a unit's number of tokens and `group` the query heads that share a key head.
    """

    rows: slice
    pages: Tensor | None
    prefix_mask: Tensor | None
    own_mask: Tensor | None
    layout: Layout

    @classmethod
    def of(cls, units: Sequence[Unit], places: Sequence[RowKv], cache: PagedCache) -> SharedBatch:
        """Of units, all with a prefix or all without. Its place among the rows is still to be given."""
        rows = slice(0, sum(unit.num_rows for unit in units))
        layout = Layout(len(units), cache.heads_per_key)
        return cls(rows, *_prefix(units, cache), _own_mask(units, places, cache), layout)

    def __call__(self, keys: Tensor, values: Tensor, rows: Rows) -> None:
        """Attention of the rows over one layer's pages and themselves."""
        queries = self.layout.queries(rows.q)
        folded = queries.flatten(2, 3)
        part = attend(folded, self.layout.keys(rows.k), self.layout.keys(rows.v), self.own_mask)
        out = part.out
        if self.pages is not None:
            copies = [self.layout.keys(pages.index_select(0, self.pages)) for pages in (keys, values)]
            out = merge(attend(folded, copies[0], copies[1], self.prefix_mask), part)
        self.layout.queries(rows.seen).copy_(out.view_as(queries))


def _prefix(units: Sequence[Unit], cache: PagedCache) -> tuple[Tensor | None, Tensor | None]:
    """Pages and their mask. What is missing is filled up with the unit's own first page, never with another's."""
    counts = np.array([unit.base for unit in units])
    most = int(counts.max())
    if not most:
        return None, None
    pages = np.repeat(np.array([unit.pages[0] for unit in units], dtype=np.int64)[:, None], most, axis=1)
    for number, unit in enumerate(units):
        pages[number, : unit.base] = unit.pages[: unit.base]
    flat = send(pages.reshape(-1), cache.keys.device)
    return flat, page_mask(counts, most, cache) if counts.min() < most else None


def _own_mask(units: Sequence[Unit], places: Sequence[RowKv], cache: PagedCache) -> Tensor | None:
    """A row sees itself and the final blocks before it."""
    count = units[0].num_rows
    if count == 1:
        return None
    rows = [[places[unit.first + number] for number in range(count)] for unit in units]
    indices = np.array([[row.index for row in own] for own in rows])
    keeps = np.array([[row.keeps for row in own] for own in rows])
    seen = ((indices[:, None, :] < indices[:, :, None]) & keeps[:, None, :]) | np.eye(count, dtype=bool)
    if (seen == seen[0]).all():
        seen = seen[:1]
    tokens = seen.repeat(cache.block_size, axis=1).repeat(cache.block_size, axis=2)
    return mask_of(np.tile(tokens, (1, cache.heads_per_key, 1))[:, None], cache)

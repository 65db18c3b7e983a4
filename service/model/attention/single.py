"""A batch of rows that share no read: the usual case of many requests with short prefixes.

Every row's keys are written to a page first, to a spare one if its block is not final. One copy then has the pages
before a row and its own, and one softmax does. What a row may not see of the copy is masked, and is its own page again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from service.model.attention.batch import Layout, Rows, page_mask
from service.model.attention.cache import PagedCache
from service.model.attention.units import Unit
from service.model.transfer import send


@dataclass(frozen=True, slots=True)
class SingleBatch:
    """`pages` `[R * P]`: what the rows read, their own included. `mask` `[R, 1, 1, P * L]`: None if all read P."""

    rows: slice
    pages: Tensor
    mask: Tensor | None
    layout: Layout

    @classmethod
    def of(cls, units: Sequence[Unit], own: Sequence[int], cache: PagedCache, width: int | None) -> SingleBatch:
        """Of units of one row; `own`: the page each writes. Its place among the rows is still to be given."""
        counts = np.array([unit.base for unit in units]) + 1
        most = width or int(counts.max())
        pages = np.repeat(np.array(own, dtype=np.int64)[:, None], most, axis=1)
        for number, unit in enumerate(units):
            pages[number, : unit.base] = unit.pages[: unit.base]
        mask = page_mask(counts, most, cache) if width is not None or counts.min() < most else None
        flat = send(pages.reshape(-1), cache.keys.device)
        return cls(slice(0, len(units)), flat, mask, Layout(len(units), cache.heads_per_key))

    def __call__(self, keys: Tensor, values: Tensor, rows: Rows) -> None:
        """Attention of the rows over one layer's pages."""
        # All queries of a row see the same keys, so the heads that share a key head are folded into the query length:
        # no key is repeated.
        queries = self.layout.queries(rows.q)
        k, v = (self.layout.keys(pages.index_select(0, self.pages)) for pages in (keys, values))
        out = F.scaled_dot_product_attention(queries.flatten(2, 3), k, v, attn_mask=self.mask)
        self.layout.queries(rows.seen).copy_(out.view_as(queries))

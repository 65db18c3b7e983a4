"""The eager backend: paged attention in torch's own operations. It copies the pages that a batch of rows reads.

Runs on every device. A kernel that reads pages where they lie is faster on a GPU (`triton.py`). In a private batch, the
usual case of many requests with short prefixes, every row's keys are on a page, perhaps a spare one, so one softmax is
enough. In a shared-prefix batch (the states of a block, the blocks of a prompt) the pages before a unit are read once
for all its rows and are one part of the softmax. The unit's rows are the other part, and their keys are on no page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from msgspec import Struct
from torch import Tensor

from service.model.attention.interface import PagedCache
from service.model.attention.pages import Pages
from service.model.attention.shared_prefix import BatchLimits, PrefixUnit, RowKv, batches, single_units
from service.model.transfer import to_device_async

#: The most tokens of a unit. A unit's rows are computed for all pairs of their tokens, seen or not.
_MAX_TOKENS = 256
#: Padding, in tokens, with the price of one more kernel launch. Small on a CPU (slow reads), large on a GPU (slow
#: launches).
_PADDING = {"cpu": 512}
_PADDING_ELSEWHERE = 1 << 16

#: instead of the page of a row that writes none
_NO_PAGE = -1


class EagerBackend:
    """An `AttentionBackend`. With a `width` every row is a unit of its own, all in one batch."""

    def __init__(self, cache: PagedCache) -> None:
        self._cache = cache
        size, device = cache.block_size, cache.device.type
        padding = _PADDING.get(device, _PADDING_ELSEWHERE)
        self._limits = BatchLimits(rows=max(1, _MAX_TOKENS // size), padding=padding // size)

    @staticmethod
    def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:  # noqa: ARG004
        return None

    def prepare(self, rows: Sequence[RowKv], width: int | None = None) -> EagerForward:
        units = batches(rows, self._limits) if width is None else [single_units(rows)]
        return EagerForward(self._cache, rows, units, width)


class EagerForward:
    """An `AttentionForward`. `batches`: the units of each batch."""

    def __init__(
        self, cache: PagedCache, rows: Sequence[RowKv], batches: Sequence[Sequence[PrefixUnit]], width: int | None
    ) -> None:
        self._cache = cache
        self.order: list[int] = []
        spare = iter(cache.spare)
        targets: list[int] = []
        self._batches: list[PrivateBatch | SharedPrefixBatch] = []
        self._num_rows: list[int] = []
        for units in batches:
            is_private = units[0].num_rows == 1
            order = [unit.first for unit in units] if is_private else [index for unit in units for index in unit.rows]
            pages = _pages_to_write([rows[index] for index in order], spare if is_private else iter(()))
            self._batches.append(
                PrivateBatch.build(units, pages, cache, width)
                if is_private and _NO_PAGE not in pages
                else SharedPrefixBatch.build(units, rows, cache)
            )
            self.order += order
            targets += pages
            self._num_rows.append(len(order))
        written, device = [slot for slot, page in enumerate(targets) if page != _NO_PAGE], cache.device
        self._written = to_device_async(np.array(written, np.int64), device) if len(written) < len(rows) else None
        self._targets = to_device_async(np.array([targets[slot] for slot in written], np.int64), device)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self._cache.layers[layer]
        (k, key_parts), (v, value_parts) = keys.held(k), values.held(v)
        if self._targets.numel():
            for pages, new in (*key_parts, *value_parts):
                blocks = new if self._written is None else new.index_select(0, self._written)
                pages.index_copy_(0, self._targets, blocks)
        if len(self._batches) == 1:
            return self._batches[0](keys, values, _BatchRows(q, k, v))
        parts = map(_BatchRows, *(rows.split(self._num_rows) for rows in (q, k, v)))
        return torch.cat([batch(keys, values, part) for batch, part in zip(self._batches, parts, strict=True)])


def _pages_to_write(rows: Iterable[RowKv], spare: Iterator[int]) -> list[int]:
    """The page that each row writes: rows of final blocks their own, others a spare one while there are any."""
    return [row.pages[row.index] if row.writes_kv else next(spare, _NO_PAGE) for row in rows]


# --- batches ---------------------------------------------------------------------------------------


class _BatchRows(NamedTuple):
    """Queries `[R, L, heads, D]`, keys and values `[R, L, kv_heads, D]` of rows."""

    q: Tensor
    k: Tensor
    v: Tensor


class _UnitShape(Struct, frozen=True):
    """Splits a batch's rows by unit, all of one size. T is the number of tokens of a unit."""

    num_units: int
    heads_per_key: int

    def keys(self, rows: Tensor) -> Tensor:
        """`[…, L, kv_heads, D]`, rows or pages of all units, -> `[units, kv_heads, …, D]`."""
        kv_heads, size = rows.shape[-2:]
        return rows.reshape(self.num_units, -1, kv_heads, size).transpose(1, 2)

    def queries(self, rows: Tensor) -> Tensor:
        """`[R, L, heads, D]` -> `[units, kv_heads, heads_per_key * T, D]`.

        The heads that share a key head are folded into the query length, so no key is repeated.
        """
        heads, size = rows.shape[2:]
        units, group = self.num_units, self.heads_per_key
        by_head = rows.view(units, -1, heads // group, group, size).permute(0, 2, 3, 1, 4)
        return by_head.reshape(units, heads // group, -1, size)

    def rows(self, out: Tensor, like: Tensor) -> Tensor:
        """The inverse of `queries`, with the heads joined: -> `[R, L, heads * D]`. `like`: `[R, L, heads, D]`."""
        rows, length, heads, size = like.shape
        by_head = out.view(self.num_units, heads // self.heads_per_key, self.heads_per_key, -1, size)
        return by_head.permute(0, 3, 1, 2, 4).reshape(rows, length, heads * size)


class PrivateBatch(Struct, frozen=True):
    """Units of one row.

    `pages` `[R * P]`: the pages that the rows read, their own included. `mask` `[R, 1, 1, P * L]`: None if all read P.
    In a causal model it is `[R, 1, group * L, P * L]`; `group` is the number of query heads that share a key head.
    """

    pages: Tensor
    mask: Tensor | None
    shape: _UnitShape

    @classmethod
    def build(
        cls, units: Sequence[PrefixUnit], own_pages: Sequence[int], cache: PagedCache, width: int | None
    ) -> PrivateBatch:
        """`own_pages`: the page that each row writes; it pads the row's pages."""
        counts = [unit.base + 1 for unit in units]
        longest = width or max(counts)
        is_padded = width is not None or min(counts) < longest
        page_mask = _page_mask(np.array(counts), longest, cache) if is_padded and not cache.causal else None
        mask = _causal_mask(np.array(counts), longest, cache) if cache.causal else page_mask
        pages = to_device_async(_padded_pages(units, own_pages, longest), cache.device)
        return cls(pages, mask, _UnitShape(len(units), cache.heads_per_key))

    def __call__(self, keys: Pages, values: Pages, rows: _BatchRows) -> Tensor:
        """The rows' attention over one layer's pages, `[R, L, heads * D]`."""
        shape = self.shape
        k, v = shape.keys(keys.read(self.pages)), shape.keys(values.read(self.pages))
        out = F.scaled_dot_product_attention(shape.queries(rows.q), k, v, attn_mask=self.mask)
        return shape.rows(out, rows.q)


class SharedPrefixBatch(Struct, frozen=True):
    """Units with equal numbers of rows.

    `pages` `[units * P]`: the units' prefixes, None without prefixes. `prefix_mask` `[units, 1, 1, P * L]`: None if all
    units read P pages. `own_mask` `[units or 1, 1, group * T, T]`: for the keys of the rows themselves; T
    is a unit's number of tokens, `group` the number of query heads that share a key head.
    """

    pages: Tensor | None
    prefix_mask: Tensor | None
    own_mask: Tensor | None
    shape: _UnitShape

    @classmethod
    def build(cls, units: Sequence[PrefixUnit], rows: Sequence[RowKv], cache: PagedCache) -> SharedPrefixBatch:
        """Either all units have a prefix or none."""
        counts, pages, mask = [unit.base for unit in units], None, None
        if longest := max(counts):  # padding repeats the unit's first page, never another unit's page
            padded = _padded_pages(units, [unit.pages[0] for unit in units], longest)
            pages = to_device_async(padded, cache.device)
            mask = _page_mask(np.array(counts), longest, cache) if min(counts) < longest else None
        return cls(pages, mask, _own_mask(units, rows, cache), _UnitShape(len(units), cache.heads_per_key))

    def __call__(self, keys: Pages, values: Pages, rows: _BatchRows) -> Tensor:
        """The rows' attention over one layer's pages and themselves, `[R, L, heads * D]`."""
        folded = self.shape.queries(rows.q)
        among_rows = attend(folded, self.shape.keys(rows.k), self.shape.keys(rows.v), self.own_mask)
        out = among_rows.out
        if self.pages is not None:
            k, v = (self.shape.keys(pages.read(self.pages)) for pages in (keys, values))
            out = merge(attend(folded, k, v, self.prefix_mask), among_rows)
        return self.shape.rows(out, rows.q)


def _padded_pages(units: Sequence[PrefixUnit], padding: Sequence[int], length: int) -> np.ndarray:
    """The pages that each unit reads, padded to `length` with the unit's own padding, `[units * length]`."""
    tables = [
        [*unit.pages[: unit.base], *[page] * (length - unit.base)] for unit, page in zip(units, padding, strict=True)
    ]
    return np.fromiter(chain.from_iterable(tables), np.int64, length * len(units))


def _own_mask(units: Sequence[PrefixUnit], rows: Sequence[RowKv], cache: PagedCache) -> Tensor | None:
    """A row sees itself and the final blocks before it; in a causal model a token sees its row up to itself."""
    count = units[0].num_rows
    if count == 1 and not cache.causal:
        return None
    indices = np.array([[rows[index].index for index in unit.rows] for unit in units])
    final = np.array([[rows[index].writes_kv for index in unit.rows] for unit in units])
    seen = ((indices[:, None, :] < indices[:, :, None]) & final[:, None, :]) | np.eye(count, dtype=bool)
    if (seen == seen[0]).all():
        seen = seen[:1]
    tokens = seen.repeat(cache.block_size, axis=1).repeat(cache.block_size, axis=2)
    if cache.causal:
        tokens = np.tril(tokens)  # a row sees earlier rows only
    return _mask(np.tile(tokens, (1, cache.heads_per_key, 1))[:, None], cache)


def _page_mask(counts: np.ndarray, width: int, cache: PagedCache) -> Tensor:
    """`[units, 1, 1, width * L]`: the first `counts[unit]` pages are seen."""
    seen = (np.arange(width) < counts[:, None]).repeat(cache.block_size, axis=1)
    return _mask(seen[:, None, None], cache)


def _causal_mask(counts: np.ndarray, width: int, cache: PagedCache) -> Tensor:
    """`[units, 1, group * L, width * L]`: each token of page `counts[unit] - 1` sees the tokens up to itself."""
    position = (counts[:, None] - 1) * cache.block_size + np.arange(cache.block_size)
    seen = np.arange(width * cache.block_size) <= position[:, :, None]
    return _mask(np.tile(seen, (1, cache.heads_per_key, 1))[:, None], cache)


def _mask(seen: np.ndarray, cache: PagedCache) -> Tensor:
    """0 where a key is seen, elsewhere a score that hides it: finite, so that nothing becomes 0 / 0."""
    zeros = torch.zeros(seen.shape, dtype=cache.dtype)
    hidden = torch.finfo(zeros.dtype).min / 2
    return to_device_async(zeros.masked_fill_(torch.from_numpy(~seen), hidden), cache.device)


# --- attention over two sets of keys ---------------------------------------------------------------


class PartialAttention(NamedTuple):
    """`out` `[B, heads, T, D]`, `lse` `[B, heads, T]`: the logarithm of the sum of exponentials of the scores."""

    out: Tensor
    lse: Tensor


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> PartialAttention:
    """q `[B, heads, T, D]`, k and v `[B, heads, S, D]`. `mask` is added to the scores `[B, heads, T, S]`."""
    if q.device.type == "cpu":
        return PartialAttention(*torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=mask))  # noqa: SLF001
    return attend_by_operations(q, k, v, mask)


def attend_by_operations(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> PartialAttention:
    """As `attend`, in operations that every device has. Half precision is computed in fp32."""
    exact = q.dtype if q.dtype == torch.float64 else torch.float32
    scores = (q.to(exact) / math.sqrt(q.shape[-1])) @ k.to(exact).transpose(-1, -2)
    if mask is not None:
        scores = scores + mask
    lse = scores.logsumexp(-1)
    out = (scores - lse.unsqueeze(-1)).exp() @ v.to(exact)
    return PartialAttention(out.to(q.dtype), lse)


def merge(first: PartialAttention, second: PartialAttention) -> Tensor:
    """The attention over the keys of both parts, `[B, heads, T, D]`."""
    weight = torch.sigmoid(second.lse - first.lse).unsqueeze(-1)
    return torch.lerp(first.out.to(weight.dtype), second.out.to(weight.dtype), weight).to(first.out.dtype)

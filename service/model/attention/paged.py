"""Paged attention by Triton kernels: pages are read where they lie, once for all rows of a unit and a tile of queries.

A forward is three kernels a layer: the keys of final blocks go to their pages, every program attends to its share of
the keys, and what was divided is merged. All that they are told lies in one table, which is sent before the forward.
Without `width` the division follows the load; with it, a row's numbers depend on the row alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from service.model.attention.cache import PagedCache
from service.model.attention.interface import RowKv
from service.model.attention.work import Capacity, PageTables, Shape, Table, Work, work_of
from service.model.transfer import send, send_into

#: By the bytes of a number: queries of a program, keys of a step, warps. They fit a multiprocessor's registers (of what
#: the compiler says for compute capability 9.0: none is spilt).
_TILES = {2: (64, 64, 4), 4: (32, 16, 8), 8: (16, 16, 8)}
#: Programs for each multiprocessor; and the multiprocessors of a device that is none, for Triton's interpreter.
_PROGRAMS, _PROCESSORS = 2, 8


class TritonBackend:
    """A `GraphCapable` attention over a cache."""

    def __init__(self, cache: PagedCache) -> None:
        self._cache = cache
        device, dtype = cache.keys.device, cache.keys.dtype
        processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else None
        programs = -(-_PROGRAMS * (processors or _PROCESSORS) // cache.keys.shape[3])
        self.shape = Shape(cache.block_size, cache.heads_per_key, _TILES[dtype.itemsize][0], programs)
        self._tables = PageTables()
        self._parts: dict[tuple[int, int], _Parts] = {}
        self._rooms: dict[int, Tensor] = {}

    def prepare(self, places: Sequence[RowKv], width: int | None = None) -> TritonForward:
        """The attention of a forward, with tables of its own."""
        work = self.plan(places, width)
        capacity = Capacity.of(work)
        packed = _pack(work, capacity)
        tables = _Tables(send(packed, self._cache.keys.device), capacity)
        writes = bool((work.targets >= 0).any())
        return TritonForward(self._cache, tables, _Parts.of(capacity, self._cache), work.order, writes=writes)

    def plan(self, places: Sequence[RowKv], width: int | None = None, rows: int | None = None) -> Work:
        """The tables of a forward, filled up to `rows` rows; those behind the places' write nothing."""
        padding = 0 if rows is None else rows - len(places)
        return work_of(places, self.shape, self._tables, width, padding)

    def capacity(self, work: Work, width: int | None) -> Capacity:
        """The shape of a plan: the same for all plans of as many rows with tiles as large."""
        return Capacity.enough(len(work.indices), work.tile, width, self.shape)

    def for_graph(self, capacity: Capacity) -> TritonGraphAttention:
        """An attention for all forwards of one shape, its tables at addresses that stay."""
        # Forwards run one after another, so they share what lives in one.
        key = (capacity.tile, capacity.parts)
        if key not in self._parts:
            self._parts[key] = _Parts.of(capacity, self._cache)
        room = _power(_ends(capacity)[-1] + max(4, capacity.rows * self._cache.longest))
        if room not in self._rooms:
            self._rooms[room] = torch.zeros(room, dtype=torch.int32, device=self._cache.keys.device)
        return TritonGraphAttention(self._cache, _Tables(self._rooms[room], capacity), self._parts[key])


class _Parts:
    """Results that are to be merged, `out` `[parts, kv_heads, tile, D]` and `lse` `[parts, kv_heads, tile]`."""

    def __init__(self, out: Tensor, lse: Tensor) -> None:
        self.out, self.lse = out, lse

    @classmethod
    def of(cls, capacity: Capacity, cache: PagedCache) -> _Parts:
        keys = cache.keys
        exact = torch.float64 if keys.dtype == torch.float64 else torch.float32
        shape = (max(1, capacity.parts), keys.shape[3], capacity.tile, keys.shape[4])
        return cls(
            torch.empty(shape, device=keys.device, dtype=exact), torch.empty(shape[:3], device=keys.device, dtype=exact)
        )


class _Tables:
    """The tables of a forward as views of one tensor, in the order in which `_pack` writes them."""

    def __init__(self, packed: Tensor, capacity: Capacity) -> None:
        self.packed, self.capacity = packed, capacity
        ends = _ends(capacity)
        self.items, self.merges, self.indices, self.keeps, self.targets = (
            packed[start:end] for start, end in zip([0, *ends], ends, strict=False)
        )
        self.pages = packed[ends[-1] :]


def _ends(capacity: Capacity) -> list[int]:
    """Where each table ends. All begin at whole 16 bytes: a kernel is compiled for aligned tables or for others."""
    rows = -(-capacity.rows // 4) * 4
    sizes = (8 * capacity.items, 4 * capacity.merges, rows, rows, rows)
    return [int(end) for end in np.cumsum(sizes)]


def _pack(work: Work, capacity: Capacity) -> Table:
    """All tables in one; what is missing to the capacity is 0, which is no work. ValueError if the work is more."""
    if not Capacity.of(work).fits(capacity):
        raise ValueError(f"{Capacity.of(work)} does not fit {capacity}")
    ends = _ends(capacity)
    packed = np.zeros(ends[-1] + max(4, len(work.pages)), np.int32)
    tables = (work.items.reshape(-1), work.merges.reshape(-1), work.indices, work.keeps, work.targets, work.pages)
    for start, table in zip([0, *ends], tables, strict=True):
        packed[start : start + len(table)] = table
    return packed


class TritonForward:
    """The attention of one forward. `writes`: whether a row of it goes to a page."""

    def __init__(
        self, cache: PagedCache, tables: _Tables, parts: _Parts, order: Sequence[int], *, writes: bool
    ) -> None:
        import triton.language as tl

        from service.model.attention import kernels

        self._kernels, self._cache, self._tables, self._parts = kernels, cache, tables, parts
        self.order = order
        self._writes = writes
        pages = cache.keys.shape
        block, kv_heads, dim = int(pages[2]), int(pages[3]), int(pages[4])
        dtype = cache.keys.dtype
        exact = tl.float64 if dtype == torch.float64 else tl.float32
        self._sizes = {"KV_HEADS": kv_heads, "D": dim, "D_PAD": max(16, _power(dim))}
        self._place = {"L": block, "L_PAD": _power(block)}
        self._fold = {"GROUP": cache.heads_per_key, "TILE": tables.capacity.tile, "ACC": exact}
        _, step, warps = _TILES[dtype.itemsize]
        interpreted = cache.keys.device.type == "cpu"
        self._walk = {
            "L": block, "KEYS": step, "SCALE": math.log2(math.e) / math.sqrt(dim),
            "WIDE": interpreted and dtype == torch.bfloat16, "num_warps": warps, "num_stages": 2,
        }  # fmt: skip

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q `[R, L, heads, D]`, k and v `[R, L, kv_heads, D]` -> `[R, L, heads * D]`."""
        tables, parts, capacity = self._tables, self._parts, self._tables.capacity
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        q_flat, k_flat, v_flat = _tokens(q), _tokens(k), _tokens(v)
        kv_heads = keys.shape[2]
        out = q.new_empty(q.shape)
        strides = (k_flat.stride(0), v_flat.stride(0))
        if self._writes:
            self._kernels.keep[capacity.rows, kv_heads](
                k_flat, v_flat, keys, values, tables.targets, *strides, **self._place, **self._sizes
            )
        self._kernels.attend[capacity.items, kv_heads](
            q_flat, k_flat, v_flat, out, keys, values, tables.items, tables.pages, tables.indices, tables.keeps,
            parts.out, parts.lse, q_flat.stride(0), *strides,
            **self._walk, **self._sizes, **self._fold,
        )  # fmt: skip
        if capacity.merges:
            self._kernels.merge[capacity.merges, kv_heads](
                out, tables.merges, parts.out, parts.lse, **self._sizes, **self._fold
            )
        return out.flatten(2)


class TritonGraphAttention(TritonForward):
    """A `GraphAttention`: the attention of forwards of one capacity."""

    def __init__(self, cache: PagedCache, tables: _Tables, parts: _Parts) -> None:
        super().__init__(cache, tables, parts, range(tables.capacity.rows), writes=True)

    def load(self, work: Work) -> None:
        """As `GraphAttention`."""
        send_into(_pack(work, self._tables.capacity), self._tables.packed)


def _tokens(rows: Tensor) -> Tensor:
    """`[R, L, heads, D]` -> `[R * L, heads, D]`, a token's heads one behind another; a copy only where they are not."""
    flat = rows.flatten(0, 1)
    return flat if flat.stride()[1:] == (flat.shape[2], 1) else flat.contiguous()


def _power(number: int) -> int:
    return 1 << (number - 1).bit_length()

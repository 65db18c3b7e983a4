"""The Triton backend: pages are read where they lie, once for all rows of a unit and a tile of queries.

A forward is one kernel a layer (`triton_kernels.py`): every program attends to its share of the keys, and the last
program of a divided tile merges its parts. Before it, the keys of final blocks go to their pages, by the kernel of the
rotation (`kv_targets`) or by one of their own. The kernels read one packed table (`tile_schedule.py`), which is copied
to the device before the forward. Without `width` tiles and splits follow the load; with it, a row's numbers depend on
the row alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from service.model.attention.interface import PagedCache
from service.model.attention.pages import PagePart
from service.model.attention.shared_prefix import RowKv
from service.model.attention.tile_schedule import (
    IntTable,
    PageTables,
    ScheduleShape,
    TileConfig,
    TileSchedule,
    schedule_tiles,
)
from service.model.layer_ops import KvTargets, PagedAttend
from service.model.transfer import to_device_async
from service.model.triton_support import triton_unavailable

#: By the bytes of a number: queries of a program, keys of a step, warps. They fit a multiprocessor's registers (the
#: compiler spills none for compute capability 9.0).
_TILES = {2: (64, 64, 4), 4: (32, 16, 8), 8: (16, 16, 8)}
#: Programs of each multiprocessor; and the number of multiprocessors that Triton's interpreter stands for.
_PROGRAMS, _PROCESSORS = 2, 8


class TritonBackend:
    """An `AttentionBackend` whose forwards can be captured in a CUDA graph: it reads one packed table.

    Schedules with equal numbers of rows and equal tiles have one capacity, and their forwards share a graph. Graphs
    share memory of partial results, since forwards run one after another.
    """

    def __init__(self, cache: PagedCache) -> None:
        self._cache = cache
        device, dtype = cache.device, cache.dtype
        processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else None
        programs = -(-_PROGRAMS * (processors or _PROCESSORS) // cache.keys.shape[3])
        self.config = TileConfig(cache.block_size, cache.heads_per_key, _TILES[dtype.itemsize][0], programs)
        self._page_tables = PageTables()
        self._partials: dict[tuple[int, int], _PartialResults] = {}

    @staticmethod
    def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
        return triton_unavailable(device, dtype)

    def prepare(self, rows: Sequence[RowKv], width: int | None = None) -> TritonForward:
        schedule = self.plan(rows, width)
        shape = schedule.shape
        tables = _DeviceTables(to_device_async(self.packed(schedule, shape), self._cache.device), shape)
        writes = bool((schedule.targets >= 0).any())
        partials = _PartialResults(shape, self._cache)
        return TritonForward(self._cache, tables, partials, writes=writes)

    def plan(self, rows: Sequence[RowKv], width: int | None = None, num_rows: int | None = None) -> TileSchedule:
        """The schedule of a forward, padded to `num_rows` rows. Padding writes nothing."""
        padding = 0 if num_rows is None else num_rows - len(rows)
        return schedule_tiles(rows, self.config, self._page_tables, width, padding)

    def capacity(self, schedule: TileSchedule, width: int | None) -> ScheduleShape | None:
        """The shape that schedules of as many rows share. None if this one, in parts of a fixed size, has too many."""
        shape = ScheduleShape.sufficient(len(schedule.indices), schedule.tile, width, self.config)
        return shape if schedule.shape.fits(shape) else None

    def packed(self, schedule: TileSchedule, shape: ScheduleShape) -> IntTable:
        """All tables in one, padded with 0, which is no work. ValueError if the schedule does not fit the shape."""
        if not schedule.shape.fits(shape):
            raise ValueError(f"{schedule.shape} does not fit {shape}")
        ends = _table_ends(shape)
        packed = np.zeros(ends[-1] + max(4, len(schedule.pages)), np.int32)
        tables = (schedule.items.reshape(-1), schedule.indices, schedule.final, schedule.targets, schedule.pages)
        for start, table in zip([0, *ends], tables, strict=True):
            packed[start : start + len(table)] = table
        return packed

    def max_packed(self, shape: ScheduleShape) -> int:
        return _table_ends(shape)[-1] + max(4, shape.rows * self._cache.max_pages)

    def for_graph(self, shape: ScheduleShape, table: Tensor) -> TritonForward:
        """The attention of all forwards of a shape, in the order of their rows. `table` int32: the packed table."""
        key = (shape.tile, shape.parts)
        if key not in self._partials:
            self._partials[key] = _PartialResults(shape, self._cache)
        return TritonForward(self._cache, _DeviceTables(table, shape), self._partials[key], writes=True)

    def release(self) -> None:
        """Gives the memory of partial results back. No graph may run that has it."""
        self._partials.clear()


class _PartialResults:
    """Results to be merged, `out` `[parts, kv_heads, tile, D]` and `lse` `[parts, kv_heads, tile]`.

    `finished` `[parts, kv_heads]`: counters of the kernel, which leaves zeros.
    """

    def __init__(self, shape: ScheduleShape, cache: PagedCache) -> None:
        keys = cache.keys
        exact = torch.float64 if cache.dtype == torch.float64 else torch.float32
        sizes = (max(1, shape.parts), keys.shape[3], shape.tile, keys.shape[4])
        self.out = torch.empty(sizes, device=keys.device, dtype=exact)
        self.lse = torch.empty(sizes[:3], device=keys.device, dtype=exact)
        self.finished = torch.zeros(sizes[:2], device=keys.device, dtype=torch.int32)


class _DeviceTables:
    """The tables of a forward as views of one tensor, in the order of `TritonBackend.packed`."""

    def __init__(self, packed: Tensor, shape: ScheduleShape) -> None:
        self.shape = shape
        ends = _table_ends(shape)
        self.items, self.indices, self.final, self.targets = (
            packed[start:end] for start, end in zip([0, *ends], ends, strict=False)
        )
        self.pages = packed[ends[-1] :]


def _table_ends(shape: ScheduleShape) -> list[int]:
    """The end of each table. All begin at whole 16 bytes: a kernel is compiled for aligned tables or for others."""
    rows = -(-shape.rows // 4) * 4
    sizes = (-(-9 * shape.items // 4) * 4, rows, rows, rows)
    return [int(end) for end in np.cumsum(sizes)]


class TritonForward(PagedAttend):
    """An `AttentionForward`. `writes`: whether any of its rows is written to a page."""

    def __init__(self, cache: PagedCache, tables: _DeviceTables, partials: _PartialResults, *, writes: bool) -> None:
        import triton.language as tl

        from service.model.attention import triton_kernels

        self._kernels, self._cache, self._tables, self._partials = triton_kernels, cache, tables, partials
        self.order, self._writes = range(tables.shape.rows), writes
        pages = cache.keys.shape
        block, kv_heads, dim = int(pages[2]), int(pages[3]), int(pages[4])
        dtype = cache.dtype
        exact = tl.float64 if dtype == torch.float64 else tl.float32
        self._kv_heads, self._head_size = {"KV_HEADS": kv_heads}, {"D": dim, "D_PAD": max(16, _power(dim))}
        self._block_sizes = {"L": block, "L_PAD": _power(block)}
        self._tile_sizes = {"GROUP": cache.heads_per_key, "TILE": tables.shape.tile, "ACC": exact}
        _, step, warps = _TILES[dtype.itemsize]
        interpreted = cache.device.type == "cpu"
        self._loop = {
            "L": block, "KEYS": step, "SCALE": math.log2(math.e) / math.sqrt(dim),
            "WIDE": interpreted and dtype == torch.bfloat16, "CAUSAL": cache.causal,
            "num_warps": warps, "num_stages": 2,
        }  # fmt: skip

    @property
    def final_rows(self) -> tuple[Tensor, Tensor]:
        return self._tables.final, self._tables.targets

    def kv_targets(self, layer: int) -> KvTargets | None:
        keys, values = self._cache.layers[layer]
        if not self._writes and keys.scales is None:
            return None
        return KvTargets(keys.numbers, values.numbers, self._tables.targets, keys.scales, values.scales)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self._cache.layers[layer]
        (k, key_parts), (v, value_parts) = keys.held(k), values.held(v)
        if self._writes:
            for key_part, value_part in zip(key_parts, value_parts, strict=True):
                self._write(key_part, value_part)
        return self.read(layer, q, k, v)

    def _write(self, keys: PagePart, values: PagePart) -> None:
        width, k_flat, v_flat = keys.rows.shape[3], _tokens(keys.rows), _tokens(values.rows)
        self._kernels.write_kv[self._tables.shape.rows, keys.rows.shape[2]](
            k_flat, v_flat, keys.pages, values.pages, self._tables.targets, k_flat.stride(0), v_flat.stride(0),
            **self._block_sizes, **self._kv_heads, D=width, D_PAD=_power(width),
        )  # fmt: skip

    def read(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        tables, partials, shape = self._tables, self._partials, self._tables.shape
        keys, values = self._cache.layers[layer]
        q_flat, k_flat, v_flat = _tokens(q), _tokens(k), _tokens(v)
        kv_heads = k.shape[2]
        out = q.new_empty(q.shape)
        strides = (k_flat.stride(0), v_flat.stride(0))
        self._kernels.attend[shape.items, kv_heads](
            q_flat, k_flat, v_flat, out, keys.numbers, values.numbers, keys.scales, values.scales,
            tables.items, tables.pages, tables.indices, tables.final,
            partials.out, partials.lse, partials.finished, q_flat.stride(0), *strides,
            **self._loop, **self._kv_heads, **self._head_size, **self._tile_sizes,
        )  # fmt: skip
        return out.flatten(2)


def _tokens(rows: Tensor) -> Tensor:
    """`[R, L, heads, D]` -> `[R * L, heads, D]`. A token's heads are contiguous; a copy only where they are not."""
    flat = rows.flatten(0, 1)
    return flat if flat.stride()[1:] == (flat.shape[2], 1) else flat.contiguous()


def _power(size: int) -> int:
    return 1 << (size - 1).bit_length()

"""Rows over a paged cache with what attention by its definition gives for each. Needs torch alone."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from service.model import parse_config
from service.model.attention import AttentionBackend, AttentionForward, PagedCache, round_heads
from tests.reference import block_causal_mask, dense_attention
from tests.tiny import I_DLM, tiny_config

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

QKV = tuple[Tensor, Tensor, Tensor]

#: largest difference from attention in float64 over the same numbers
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 3e-3}


@dataclass(frozen=True, eq=False)
class RowKv:
    """A row, its queries, keys and values, and what attention by its definition gives, `[L, heads * D]`."""

    pages: Sequence[int]
    index: int
    writes_kv: bool
    qkv: QKV = field(repr=False)
    wanted: Tensor = field(repr=False)


def row_at(pages: Sequence[int], index: int, *, writes_kv: bool) -> RowKv:
    """A row of which only its place matters."""
    return RowKv(pages, index, writes_kv, (torch.empty(0),) * 3, torch.empty(0))


@dataclass(frozen=True)
class Shape:
    """A sequence: blocks written before the forward, final blocks that are rows of it, and states behind them."""

    before: int
    final: int
    states: int


def shapes(before: int, final: int, states: int) -> "SearchStrategy[Shape]":
    """Sequences of at most so many blocks of each kind."""
    from hypothesis import strategies as st

    made = st.builds(Shape, st.integers(0, before), st.integers(0, final), st.integers(0, states))
    return made.filter(lambda shape: shape.final + shape.states > 0)


@dataclass(frozen=True)
class Kind:
    """Of a world: tokens of a block, query and key heads, numbers of a head, their type, device, mask and pages."""

    size: int
    heads: tuple[int, int]
    dim: int = 8
    dtype: torch.dtype = torch.float64
    device: str = "cpu"
    causal: bool = False  # whether a token sees no later one of its block either
    kv_cache_dtype: str = "auto"  # the form of its pages


class World:
    """A cache full of NaN but for what is written, and the rows of some sequences."""

    def __init__(self, kind: Kind, shapes: Sequence[Shape], seed: int) -> None:
        self.kind = kind
        self.generator = torch.Generator().manual_seed(seed)
        heads, kv_heads = kind.heads
        config = parse_config(
            tiny_config(
                num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=kind.dim,
                max_position_embeddings=4096, **I_DLM if kind.causal else {},
            ),
            block_size=kind.size,
        )  # fmt: skip
        total = sum(shape.before + shape.final + 1 for shape in shapes)
        self.cache = PagedCache(config, total, torch.device(kind.device), kind.dtype, kind.kv_cache_dtype)
        for tensor in (self.cache.keys, self.cache.values, *self.cache.scales):
            if tensor is not None and tensor.is_floating_point():
                tensor.fill_(torch.nan)  # a row that reads what nobody has written for it is spoilt
        free = torch.randperm(total, generator=self.generator).tolist()
        self.sequences = [self.rows(shape, free) for shape in shapes]

    @property
    def all_rows(self) -> list[RowKv]:
        return [row for sequence in self.sequences for row in sequence]

    def rows(self, shape: Shape, free: list[int]) -> list[RowKv]:
        """The rows of a sequence; what lies before them is written at once."""
        num_final = shape.before + shape.final
        pages = [free.pop() for _ in range(num_final + 1)]
        blocks = [self.block() for _ in range(num_final)]
        for page, (_, k, v) in zip(pages, blocks[: shape.before], strict=False):
            for tensors, new in zip(self.cache.layers[1], (k, v), strict=True):
                _, parts = tensors.held(new[None].to(self.cache.device, self.cache.dtype))
                for part in parts:
                    part.pages[page] = part.rows[0]
        rows = [
            RowKv(pages, index, True, blocks[index], self.dense(blocks[: index + 1]))
            for index in range(shape.before, num_final)
        ]
        for _ in range(shape.states):
            state = self.block()
            rows.append(RowKv(pages, num_final, False, state, self.dense([*blocks, state])))
        return rows

    def block(self) -> QKV:
        """In float64, of numbers that the world's type has."""
        size, dim, (heads, kv_heads) = self.kind.size, self.kind.dim, self.kind.heads
        shapes = ((size, heads, dim), (size, kv_heads, dim), (size, kv_heads, dim))
        made = (torch.randn(shape, generator=self.generator, dtype=torch.float64) for shape in shapes)
        q, k, v = (part.to(self.kind.dtype).double() for part in made)
        return q, k, v

    def dense(self, blocks: Sequence[QKV]) -> Tensor:
        """Attention of the last block over all of them, with the keys and values that pages hold."""
        q, k, v = (torch.cat([block[part] for block in blocks])[None] for part in range(3))
        if self.kind.kv_cache_dtype == "int8":
            k, v = (round_heads(part).widened(self.kind.dtype).double() for part in (k, v))
        mask = block_causal_mask(q.shape[1], 1 if self.kind.causal else self.kind.size)
        return dense_attention(mask)(0, q, k, v)[0, -self.kind.size :]

    def inputs(self, ordered: Sequence[RowKv]) -> QKV:
        """As the layers give them: views of one projection."""
        together = torch.cat([torch.stack([row.qkv[part] for row in ordered]) for part in range(3)], 2)
        heads, kv_heads = self.kind.heads
        q, k, v = together.to(self.cache.device, self.cache.dtype).split((heads, kv_heads, kv_heads), 2)
        return q, k, v

    def check_in_parts(self, attention: AttentionBackend, rng: random.Random) -> None:
        """Halves and any other parts in order find what those before them wrote."""
        rows = self.all_rows
        while rows:
            count = rng.choice([len(rows), rng.randint(1, len(rows))])
            self.check(attention, rows[:count])
            del rows[:count]

    def check(
        self, attention: AttentionBackend, rows: Sequence[RowKv], width: int | None = None
    ) -> tuple[AttentionForward, Tensor]:
        """Computes the rows in one forward and compares each; what prepared it, and the result."""
        forward = attention.prepare(rows, width)
        assert sorted(forward.order) == list(range(len(rows)))
        ordered = [rows[number] for number in forward.order]
        out = forward(1, *self.inputs(ordered))
        assert out.dtype == self.kind.dtype
        wanted = torch.stack([row.wanted for row in ordered])
        torch.testing.assert_close(out.double().cpu(), wanted, rtol=0, atol=TOLERANCE[self.kind.dtype])
        return forward, out

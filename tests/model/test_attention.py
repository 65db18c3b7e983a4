"""Paged attention over rows against attention by its definition."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from service.decode.block import Block
from service.engine.rows import Row, to_tensors
from service.model import parse_config
from service.model.attention import PagedAttention, PagedCache
from tests.reference import block_causal_mask, dense_attention
from tests.tiny import tiny_config


@settings(max_examples=60)
@given(
    st.sampled_from([1, 2, 3, 4, 8]),
    st.sampled_from([(1, 1), (4, 4), (4, 2), (6, 2), (4, 1)]),
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3)), min_size=1, max_size=5),
    st.integers(0, 2**31),
)
def test_rows_read_their_own_sequence_as_dense_attention_does(
    size: int, heads: tuple[int, int], shapes: list[tuple[int, int]], seed: int
) -> None:
    """Sequences of some stored blocks, each with some rows that look at different states of the next one."""
    generator = torch.Generator().manual_seed(seed)
    config = parse_config(
        tiny_config(block_size=size, num_attention_heads=heads[0], num_key_value_heads=heads[1], head_dim=8)
    )
    total = sum(blocks for blocks, _ in shapes)
    scratch = sum(states for _, states in shapes)
    pages = (torch.randperm(total, generator=generator) + scratch).tolist()
    cache = PagedCache(config, total + scratch, torch.device("cpu"), torch.float64)
    cache.keys.fill_(torch.nan)  # whatever a row may not see would spoil its result
    cache.values.fill_(torch.nan)

    rows: list[Row] = []
    qkv: list[tuple[Tensor, Tensor, Tensor]] = []
    expected: list[Tensor] = []
    for blocks, states in shapes:
        own, pages = pages[:blocks], pages[blocks:]
        stored = [_projections(generator, size, *heads) for _ in range(blocks)]
        for index, block in enumerate(stored):
            rows.append(Row(Block((0,) * size), index, own, keeps=True))
            qkv.append(block)
            expected.append(_dense(stored[: index + 1], size))
        for _ in range(states):
            state = _projections(generator, size, *heads)
            rows.append(Row(Block((0,) * size), blocks, own, keeps=False))
            qkv.append(state)
            expected.append(_dense([*stored, state], size))
    order = torch.randperm(len(rows), generator=generator).tolist()
    inputs = to_tensors([rows[i] for i in order], size, config.mask_token_id, torch.device("cpu"))
    # Padded reads touch pages that nobody wrote; masked keys must be finite there.
    cache.keys.nan_to_num_(0.0)
    cache.values.nan_to_num_(0.0)
    q, k, v = (torch.stack([qkv[i][part] for i in order]) for part in range(3))
    out = PagedAttention(cache, inputs.table)(1, q, k, v)
    torch.testing.assert_close(out, torch.stack([expected[i] for i in order]), rtol=0, atol=1e-10)


def _projections(generator: torch.Generator, size: int, heads: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    shapes = ((size, heads, 8), (size, kv_heads, 8), (size, kv_heads, 8))
    q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return q, k, v


def _dense(blocks: list[tuple[Tensor, Tensor, Tensor]], size: int) -> Tensor:
    """Attention of the last block over all of them, `[L, heads * D]`."""
    q, k, v = (torch.cat([block[part] for block in blocks])[None] for part in range(3))
    return dense_attention(block_causal_mask(q.shape[1], size))(0, q, k, v)[0, -size:]


def test_layers_do_not_share_pages() -> None:
    config = parse_config(tiny_config())
    cache = PagedCache(config, 3, torch.device("cpu"), torch.float32)
    inputs = to_tensors([Row(Block((0,) * 4), 0, [2], keeps=True)], 4, 60, torch.device("cpu"))
    ones = torch.ones(1, 4, 2, 16)
    PagedAttention(cache, inputs.table)(2, torch.ones(1, 4, 4, 16), ones, ones)
    written = [(layer, page) for layer in range(3) for page in range(3) if cache.keys[layer, page].any()]
    assert written == [(2, 2)]


def test_memory_of_a_page() -> None:
    config = parse_config(tiny_config())
    cache = PagedCache(config, 5, torch.device("cpu"), torch.bfloat16)
    held = sum(t.numel() * t.element_size() for t in (cache.keys, cache.values))
    assert 5 * PagedCache.bytes_per_page(config, torch.bfloat16) == held

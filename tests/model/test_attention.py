"""Paged attention of rows against attention by its definition, for every backend and every way to batch."""

import random
from pathlib import Path
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from service.errors import SettingsError
from service.model import parse_config, triton_support
from service.model.attention import (
    ATTENTION_BACKENDS,
    PagedCache,
    attention_backend,
    eager,
    page_bytes,
    resolve_backend,
)
from service.model.attention.eager import PrivateBatch, SharedPrefixBatch
from service.model.attention.interface import NUM_SPARE
from service.model.attention.pages import PAGE_FORMS
from service.model.attention.shared_prefix import PrefixUnit, prefix_units
from service.settings.settings import Settings
from tests.model.attention_world import Kind, Shape, World, row_at, shapes
from tests.tiny import tiny_config

DIM = 8
HEADS = [(1, 1), (4, 4), (4, 2), (6, 2), (4, 1)]


SHAPES = shapes(9, 7, 4)


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from([1, 2, 3, 4, 8]),
    st.sampled_from(HEADS),
    st.lists(SHAPES, min_size=1, max_size=6),
    st.sampled_from([(1, 0), (2, 0), (4, 3), (64, 0), (64, 20), (64, 10**6)]),
    st.integers(0, NUM_SPARE),
    st.integers(0, 2**31),
    st.booleans(),
)
def test_rows_see_their_own_sequence_as_in_dense_attention(
    size: int, heads: tuple[int, int], of: list[Shape], limits: tuple[int, int], spare: int, seed: int, causal: bool
) -> None:
    """However rows are shared, batched and cut into forwards, and however few spare pages there are."""
    world, rng = World(Kind(size, heads, causal=causal), of, seed), random.Random(seed)
    world.cache.spare = world.cache.spare[: rng.choice([spare, rng.randint(0, 3)])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(eager, "_MAX_TOKENS", limits[0] * size)
        patch.setattr(eager, "_PADDING", {"cpu": limits[1] * size})
        world.check_in_parts(attention_backend(world.cache), rng)


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from([1, 2, 4]), st.sampled_from(HEADS), st.lists(SHAPES, min_size=1, max_size=4), st.integers(0, 9),
    st.booleans(),
)  # fmt: skip
def test_with_a_width_every_row_is_computed_in_one_shape(
    size: int, heads: tuple[int, int], of: list[Shape], seed: int, causal: bool
) -> None:
    world = World(Kind(size, heads, causal=causal), of, seed)
    rows = world.all_rows
    width = max(row.index for row in rows) + 1 + seed
    forward, _ = world.check(attention_backend(world.cache), rows, width)
    assert list(forward.order) == list(range(len(rows)))
    (batch,) = forward._batches
    assert isinstance(batch, PrivateBatch)
    assert batch.mask is not None
    queries = heads[0] // heads[1] * size if causal else 1
    assert batch.mask.shape == (len(rows), 1, queries, width * size)


class TestPart:
    """torch's kernel for CPUs beside the same written out, and parts beside the whole."""

    @settings(max_examples=40, deadline=None)
    @given(
        st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 40), st.integers(1, 40)),
        st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
        st.booleans(),
        st.integers(0, 2**31),
    )
    def test_both_ways_agree(
        self, shape: tuple[int, int, int, int], dtype: torch.dtype, masked: bool, seed: int
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        batch, heads, tokens, keys = shape
        q, k, v = (
            torch.randn(batch, heads, length, DIM, generator=generator, dtype=torch.float64).to(dtype)
            for length in (tokens, keys, keys)
        )
        mask = None
        if masked:
            seen = torch.rand(batch, 1, tokens, keys, generator=generator) < 0.6
            seen[..., 0] = True
            mask = torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min / 2)
        by_kernel, by_operations = eager.attend(q, k, v, mask), eager.attend_by_operations(q, k, v, mask)
        tolerance = {torch.float64: 1e-12, torch.float32: 1e-5}.get(dtype, 3e-2)
        assert by_kernel.out.dtype == by_operations.out.dtype == dtype
        torch.testing.assert_close(by_kernel.out, by_operations.out, rtol=0, atol=tolerance)
        torch.testing.assert_close(by_kernel.lse.double(), by_operations.lse.double(), rtol=0, atol=tolerance)

    @pytest.mark.parametrize("way", [eager.attend, eager.attend_by_operations])
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
    def test_two_parts_are_the_whole(self, way, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(3)
        q, k, v = ((3 * torch.randn(2, 2, length, DIM, generator=generator)).to(dtype) for length in (5, 30, 30))
        whole = way(q, k, v, None).out
        for cut in (1, 7, 29):
            first, second = (way(q, k[:, :, part], v[:, :, part], None) for part in (slice(cut), slice(cut, 30)))
            merged = eager.merge(first, second)
            assert merged.dtype == dtype
            torch.testing.assert_close(merged, whole, rtol=0, atol=0.05 if dtype == torch.bfloat16 else 1e-5)

    def test_other_devices_write_it_out(self) -> None:
        """`meta` stands for them: it has shapes and no numbers."""
        q = torch.empty(1, 2, 5, DIM, device="meta", dtype=torch.float16)
        part = eager.attend(q, q, q, None)
        assert (part.out.shape, part.out.dtype, part.lse.shape) == (q.shape, torch.float16, q.shape[:3])


def test_a_prompt_is_cut_into_units_that_read_what_lies_before_them() -> None:
    pages = [0] * 300
    rows = [row_at(pages, index, writes_kv=index < 150) for index in range(10, 151)]
    starts = [(0, 64, 10), (64, 64, 74), (128, 13, 138)]
    assert prefix_units(rows, 64) == [PrefixUnit(*start, pages) for start in starts]


def test_states_of_one_sequence_copy_their_prefix_once() -> None:
    """17 states behind 1,000 blocks: one copy of the prefix, none of the states' own pages."""
    config = parse_config(tiny_config())
    cache = PagedCache(config, 1001, torch.device("cpu"), torch.float32)
    pages = list(range(1001))
    forward = attention_backend(cache).prepare([row_at(pages, 1000, writes_kv=False) for _ in range(17)])
    (batch,) = forward._batches
    assert isinstance(batch, SharedPrefixBatch)
    assert batch.pages is not None
    assert len(batch.pages) == 1000


@pytest.mark.parametrize(("writes_kv", "written"), [(True, [(2, 2)]), (False, [])])
def test_a_row_writes_its_sequences_page_of_one_layer_if_its_block_is_final(
    writes_kv: bool, written: list[tuple[int, int]]
) -> None:
    cache = PagedCache(parse_config(tiny_config()), 3, torch.device("cpu"), torch.float32)
    assert cache.keys.shape == (3, 3 + NUM_SPARE, 4, 2, 16)
    forward = attention_backend(cache).prepare([row_at([2], 0, writes_kv=writes_kv)])
    ones = torch.ones(1, 4, 2, 16)
    forward(2, torch.ones(1, 4, 4, 16), ones, ones)
    assert [(layer, page) for layer in range(3) for page in range(3) if cache.keys[layer, page].any()] == written


@pytest.mark.parametrize("kv_cache_dtype", PAGE_FORMS)
def test_memory_of_a_page(kv_cache_dtype: str) -> None:
    config = parse_config(tiny_config())
    cache = PagedCache(config, 5, torch.device("cpu"), torch.bfloat16, kv_cache_dtype)
    tensors = [tensor for tensor in (cache.keys, cache.values, *cache.scales) if tensor is not None]
    assert (5 + NUM_SPARE) * page_bytes(config, 2, kv_cache_dtype) == sum(tensor.nbytes for tensor in tensors)


def test_an_unknown_backend_says_which_there_are() -> None:
    allowed = ", ".join(sorted(["auto", *ATTENTION_BACKENDS]))
    cache = PagedCache(parse_config(tiny_config()), 1, torch.device("cpu"), torch.float32)
    with pytest.raises(SettingsError, match=f"attention is 'flash', allowed are {allowed}$"):
        attention_backend(cache, "flash")


def test_the_setting_has_the_names_there_are() -> None:
    assert set(get_args(Settings.model_fields["attention_backend"].annotation)) == {"auto", *ATTENTION_BACKENDS}


def test_on_cuda_auto_is_triton_where_it_can_compile(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(triton_support, "_is_installed", lambda: True)
    monkeypatch.setattr(triton_support, "get_paths", lambda: {"include": str(Path(__file__).parent)})
    cuda = torch.device("cuda")
    assert resolve_backend("auto", cuda, torch.bfloat16) == "eager"
    assert "attention is eager, which is slow on a GPU: for triton, Triton needs Python's headers" in caplog.text
    with pytest.raises(SettingsError, match="attention is 'triton', but Triton needs Python's headers"):
        resolve_backend("triton", cuda, torch.bfloat16)
    monkeypatch.setattr(triton_support, "which", lambda _: None)
    with pytest.raises(SettingsError, match="attention is 'triton', but Triton finds no C compiler"):
        resolve_backend("triton", cuda, torch.bfloat16)
    monkeypatch.setattr(triton_support, "_compiler_problem", lambda: None)
    assert resolve_backend("auto", cuda, torch.bfloat16) == "triton"
    assert resolve_backend("auto", cuda, torch.float64) == "eager"
    assert resolve_backend("auto", torch.device("cpu"), torch.bfloat16) == "eager"


@pytest.mark.parametrize(
    ("installed", "message"),
    [(False, "the package triton is not installed here"), (True, "its kernels need a CUDA device, not cpu")],
)
def test_triton_says_why_it_cannot_run(monkeypatch: pytest.MonkeyPatch, installed: bool, message: str) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(triton_support, "_is_installed", lambda: installed)
    cache = PagedCache(parse_config(tiny_config()), 1, torch.device("cpu"), torch.float32)
    with pytest.raises(SettingsError, match=f"attention is 'triton', but {message}.*; auto and eager work here"):
        attention_backend(cache, "triton")

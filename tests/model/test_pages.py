"""Pages in 8 bits: the rounding of heads, and attention by every backend over numbers that a page would hold."""

import random
from dataclasses import replace
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from service.errors import SettingsError
from service.model import parse_config, triton_layers
from service.model.attention import PAGE_FORMS, PagedCache, attention_backend, round_heads
from service.model.attention.pages import Rounded
from service.model.layer_ops import HeadNorms, Heads, KvTargets, Rotation
from service.settings.settings import Settings
from tests.model.attention_world import Kind, Shape, World, shapes
from tests.tiny import tiny_config

FEW = shapes(4, 3, 2)
KINDS = st.builds(
    Kind,
    st.sampled_from([1, 2, 3, 4, 8]),
    st.sampled_from([(1, 1), (4, 4), (4, 2), (6, 2), (4, 1)]),
    st.sampled_from([8, 12, 16]),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    causal=st.booleans(),
    kv_cache_dtype=st.just("int8"),
)

# --- the rounding --------------------------------------------------------------------------------------


def test_a_head_is_rounded_to_steps_of_its_largest_number_by_127() -> None:
    heads = torch.tensor([[127.0, -1.4, 2.5, 3.5], [-254.0, 1.0, 3.0, 2.9], [0.0, 0.0, 0.0, 0.0]])
    numbers, scales = round_heads(heads)
    assert scales.tolist() == [1.0, 2.0, 0.0]
    assert numbers.tolist() == [[127, -1, 2, 4], [-127, 0, 2, 1], [0, 0, 0, 0]]  # ties to even
    assert (numbers.dtype, scales.dtype) == (torch.int8, torch.float16)
    widened = Rounded(numbers, scales).widened(torch.bfloat16)
    assert widened.tolist() == [[127.0, -1.0, 2.0, 4.0], [-254.0, 0.0, 4.0, 2.0], [0.0] * 4]
    assert widened.dtype == torch.bfloat16


@given(
    st.integers(1, 40),
    st.floats(-4, 6),
    st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
    st.integers(0, 2**31),
)
def test_the_error_is_at_most_half_a_step(size: int, exponent: float, dtype: torch.dtype, seed: int) -> None:
    """And what float16's rounding of the scale takes from the largest number."""
    generator = torch.Generator().manual_seed(seed)
    exponent = min(exponent, 3.0) if dtype == torch.float16 else exponent
    heads = (10.0**exponent * torch.randn(5, 3, size, generator=generator, dtype=torch.float64)).to(dtype)
    numbers, scales = round_heads(heads)
    steps = scales.double().unsqueeze(-1)
    rounding = 127 * (steps * 2.0**-11).clamp(min=2.0**-25)  # float16 has no numbers between 0 and 2^-24
    error = (numbers.double() * steps - heads.double()).abs()
    assert (error <= 0.5 * steps * (1 + 1e-5) + rounding).all()
    assert (numbers.abs().amax(-1) >= 126)[scales > 2.0**-14].all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_of_any_size_are_safe(dtype: torch.dtype) -> None:
    """Beyond float16's scales the largest are cut off, the smallest are 0. What is not finite stays so."""
    heads = torch.tensor([[3e38, -1.0], [1e-6, 3e-7], [5e-6, -5e-6], [torch.inf, 1.0], [1.0, torch.nan]]).to(dtype)
    widened = round_heads(heads).widened(torch.float32)
    assert widened[0].tolist() == [127 * 65504.0, 0.0]
    assert widened[1].tolist() == [0.0, 0.0]
    torch.testing.assert_close(widened[2], heads[2].float(), rtol=0.25, atol=0)
    assert not widened[3:].isfinite().any()


# --- the cache -----------------------------------------------------------------------------------------


def test_the_form_of_pages_has_a_name() -> None:
    with pytest.raises(SettingsError, match=f"kv_cache_dtype is 'fp8', allowed are {', '.join(sorted(PAGE_FORMS))}$"):
        PagedCache(parse_config(tiny_config()), 1, torch.device("cpu"), torch.float32, "fp8")


def test_the_setting_has_the_names_of_the_forms() -> None:
    assert set(get_args(Settings.model_fields["kv_cache_dtype"].annotation)) == PAGE_FORMS.keys()


def test_a_cache_in_8_bits_gives_its_memory_back_and_takes_it_again() -> None:
    cache = PagedCache(parse_config(tiny_config()), 3, torch.device("cpu"), torch.float32, "int8")
    key_scales, _ = cache.scales
    assert (cache.keys.dtype, key_scales.shape) == (torch.int8, cache.keys.shape[:-1])
    before = [tensor.shape for tensor in (cache.keys, cache.values, *cache.scales)]
    cache.release()
    assert sum(tensor.nbytes for tensor in (cache.keys, cache.values, *cache.scales)) == 0
    cache.restore()
    assert [tensor.shape for tensor in (cache.keys, cache.values, *cache.scales)] == before
    assert len(cache.layers) == len(cache.keys)


# --- attention -----------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(KINDS, st.lists(shapes(9, 7, 4), min_size=1, max_size=6), st.integers(0, 9), st.integers(0, 2**31))
def test_eager_attention_reads_rounded_numbers_from_pages_and_from_the_rows(
    kind: Kind, of: list[Shape], spare: int, seed: int
) -> None:
    world, rng = World(replace(kind, dtype=torch.float64), of, seed), random.Random(seed)
    world.cache.spare = world.cache.spare[: rng.choice([spare, 256])]
    world.check_in_parts(attention_backend(world.cache, "eager"), rng)


@settings(max_examples=8)
@given(KINDS, st.lists(FEW, min_size=1, max_size=2), st.integers(0, 2**31))
def test_tritons_kernels_read_rounded_numbers_from_pages_and_from_the_rows(
    triton_device: str, kind: Kind, of: list[Shape], seed: int
) -> None:
    world = World(replace(kind, device=triton_device), of, seed)
    world.check_in_parts(attention_backend(world.cache, "triton"), random.Random(seed))


@pytest.mark.parametrize("shape", [Shape(3, 1, 1), Shape(2, 0, 2)])
def test_attention_behind_the_kernel_of_the_rotation_is_the_definition(triton_device: str, shape: Shape) -> None:
    """Heads without norms, by angles of 0. Rows are rounded, too, where no row of the forward writes a page."""
    world = World(Kind(4, (4, 2), 16, torch.float32, triton_device, kv_cache_dtype="int8"), [shape], 3)
    rows = world.all_rows
    forward, qkv = attention_backend(world.cache, "triton").prepare(rows), torch.cat(world.inputs(rows), 2)
    angles = torch.zeros(len(rows), 4, 1, 16, device=triton_device)
    rotation = Rotation(torch.ones_like(angles), angles)
    q, k, v = triton_layers.norm_and_rotate(qkv, Heads(4, 2, None), rotation, forward.kv_targets(1))
    wanted = torch.stack([row.wanted for row in rows])
    torch.testing.assert_close(forward.read(1, q, k, v).double().cpu(), wanted, rtol=0, atol=2e-6)


def test_the_interpreter_in_float64_is_the_definition(triton_device: str) -> None:
    if triton_device == "cuda":
        pytest.skip("float64 is for the interpreter")
    of = [Shape(9, 3, 3), Shape(0, 5, 0), Shape(0, 0, 2), Shape(3, 0, 1)]
    world = World(Kind(4, (6, 2), kv_cache_dtype="int8"), of, 7)
    world.check(attention_backend(world.cache, "triton"), world.all_rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["eager", "triton"])
def test_a_page_gives_the_bits_that_the_row_itself_had(triton_device: str, name: str, dtype: torch.dtype) -> None:
    """A row reads a block beside it in the forward as it later reads the block's page."""
    device = "cpu" if name == "eager" else triton_device
    world = World(Kind(4, (4, 2), 16, dtype, device, kv_cache_dtype="int8"), [Shape(0, 1, 0)], 5)
    (row,) = world.all_rows
    pages, values = world.cache.layers[1]
    world.check(attention_backend(world.cache, name), [row])
    _, k, v = world.inputs([row])
    index = torch.tensor(row.pages[:1], device=device)
    assert torch.equal(pages.read(index), pages.held(k)[0])
    assert torch.equal(values.read(index), values.held(v)[0])


# --- the kernel of norms and rotation ------------------------------------------------------------------


@settings(max_examples=10)
@given(
    st.integers(1, 3), st.integers(1, 5), st.sampled_from([(1, 1), (4, 2), (6, 2), (16, 3)]),
    st.sampled_from([2, 8, 12]), st.sampled_from([0, 0, 6]),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16]), st.booleans(), st.integers(0, 2**31),
)  # fmt: skip
def test_the_kernel_of_the_rotation_rounds_and_writes_as_round_heads(
    triton_device: str, rows: int, length: int, heads: tuple[int, int], width: int, rest: int, dtype: torch.dtype,
    normed: bool, seed: int,
) -> None:  # fmt: skip
    """Numbers and scales on the pages to the bit, and all rows' keys and values, whether or not a page is written."""
    generator = torch.Generator(triton_device).manual_seed(seed)

    def random_of(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=triton_device).to(dtype)

    (query_heads, kv_heads), size = heads, width + rest
    qkv = random_of(rows, length, query_heads + 2 * kv_heads, size)
    qkv[0, 0, -1] = 0.0  # a head of values that is all zeros
    qkv[-1, -1, -1, 0] = 60000.0
    norms = HeadNorms(random_of(size), random_of(size), 1e-6) if normed else None
    rotation = Rotation(random_of(rows, length, 1, width), random_of(rows, length, 1, width))
    sizes = Heads(*heads, norms)
    wide = triton_layers.norm_and_rotate(qkv.clone(), sizes, rotation, None)
    shape = (5, length, kv_heads, size)
    keys, values = (torch.full(shape, 99, dtype=torch.int8, device=triton_device) for _ in range(2))
    scales = [torch.full(shape[:-1], 99.0, dtype=torch.float16, device=triton_device) for _ in range(2)]
    before = [tensor.clone() for tensor in (keys, *scales[:1], values, *scales[1:])]
    targets = torch.randperm(5, generator=generator, device=triton_device)[:rows].int() - 1
    q, k, v = triton_layers.norm_and_rotate(qkv, sizes, rotation, KvTargets(keys, values, targets, *scales))
    assert torch.equal(q, wide[0])
    written, final = targets[targets >= 0].long(), targets >= 0
    after = [(keys, scales[0]), (values, scales[1])]
    earlier = [tuple(before[:2]), tuple(before[2:])]
    for new, exact, pages, old in zip((k, v), wide[1:], after, earlier, strict=True):
        rounded = round_heads(exact)
        # Triton's interpreter cuts bfloat16 off where CUDA rounds to the nearest
        precision = torch.finfo(dtype).eps if dtype == torch.bfloat16 else 0.0
        torch.testing.assert_close(new, rounded.widened(dtype), rtol=precision, atol=0)
        for tensor, expected, part in zip(pages, old, rounded, strict=True):
            expected[written] = part[final]
            assert torch.equal(tensor, expected)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_the_kernel_keeps_what_is_not_finite(triton_device: str) -> None:
    qkv = torch.ones(1, 1, 4, 8, device=triton_device)
    qkv[0, 0, 2, 3], qkv[0, 0, 3, 5] = torch.inf, torch.nan
    angles = torch.zeros(1, 1, 1, 8, device=triton_device)
    pages = [torch.zeros(1, 1, 1, 8, dtype=torch.int8, device=triton_device) for _ in range(2)]
    scales = [torch.zeros(1, 1, 1, dtype=torch.float16, device=triton_device) for _ in range(2)]
    targets = torch.zeros(1, dtype=torch.int32, device=triton_device)
    rotation = Rotation(torch.ones_like(angles), angles)
    _, k, v = triton_layers.norm_and_rotate(qkv, Heads(2, 1, None), rotation, KvTargets(*pages, targets, *scales))
    for new, numbers, scale in zip((k, v), pages, scales, strict=True):
        assert not new.isfinite().any()
        assert not Rounded(numbers, scale).widened(torch.float32).isfinite().any()

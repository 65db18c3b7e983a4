"""The Triton kernels of a decoder layer against torch's operations: by Triton's interpreter, or on CUDA if there."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from service.model import layer_ops, triton_layers
from service.model.layer_ops import HeadNorms, Heads, KvTargets, Rotation

DTYPES = st.sampled_from([torch.float32, torch.float32, torch.bfloat16, torch.float16])
EPS = 1e-6


@pytest.fixture(scope="module", autouse=True)
def device(triton_device: str) -> str:
    return triton_device


def numbers(seed: int, device: str) -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def assert_rounded_once(result: Tensor, expected: Tensor) -> None:
    """`expected` is computed in float64. Triton's interpreter cuts bfloat16 off where CUDA rounds to the nearest."""
    precision = torch.finfo(result.dtype).eps
    torch.testing.assert_close(result.double(), expected, rtol=precision + 1e-6, atol=2e-6 + 0.1 * precision)


@settings(max_examples=8)
@given(st.integers(1, 5), st.integers(1, 70), DTYPES, st.integers(0, 2**31))
def test_the_sum_and_its_norm(device: str, tokens: int, width: int, dtype: torch.dtype, seed: int) -> None:
    generator = numbers(seed, device)
    x, change = (torch.randn(1, tokens, width, generator=generator, device=device).to(dtype) for _ in range(2))
    weight = torch.randn(width, generator=generator, device=device).to(dtype)
    total = x.double() + change.double()
    normed = triton_layers.add_norm(x, change, weight, EPS)
    assert_rounded_once(x, total)
    wide = x.double()
    expected = wide / (wide.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * weight.double()
    assert_rounded_once(normed, expected)


@settings(max_examples=8)
@given(st.integers(1, 5), st.integers(1, 2100), DTYPES, st.integers(0, 2**31))
def test_swiglu(device: str, tokens: int, width: int, dtype: torch.dtype, seed: int) -> None:
    gate_up = (3 * torch.randn(tokens, 2 * width, generator=numbers(seed, device), device=device)).to(dtype)
    gate, up = gate_up.double().chunk(2, -1)
    assert_rounded_once(triton_layers.silu_and_mul(gate_up), gate * gate.sigmoid() * up)


#: rows, tokens of a row, heads and key heads, rotated and other numbers of a head, type, pages to write, norms, seed
heads_drawn = (
    st.integers(1, 3), st.integers(1, 5), st.sampled_from([(1, 1), (4, 2), (6, 2), (16, 3)]),
    st.sampled_from([2, 8, 12]), st.sampled_from([0, 0, 6]), DTYPES, st.sampled_from(["none", "some"]),
    st.booleans(), st.integers(0, 2**31),
)  # fmt: skip


@settings(max_examples=8)
@given(*heads_drawn)
def test_norms_rotation_and_pages(
    device: str, rows: int, length: int, heads: tuple[int, int], width: int, rest: int, dtype: torch.dtype,
    pages: str, normed: bool, seed: int,
) -> None:  # fmt: skip
    generator = numbers(seed, device)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device).to(dtype)

    (query_heads, kv_heads), size = heads, width + rest
    qkv = random(rows, length, query_heads + 2 * kv_heads, size)
    norms = HeadNorms(random(size), random(size), EPS) if normed else None
    rotation = Rotation(random(rows, length, 1, width), random(rows, length, 1, width))
    exact_norms = norms and HeadNorms(norms.q_weight.double(), norms.k_weight.double(), EPS)
    expected = layer_ops.norm_and_rotate(
        qkv.double(), Heads(*heads, exact_norms), Rotation(rotation.cos.double(), rotation.sin.double())
    )
    cache = [random(5, length, kv_heads, size) for _ in range(2)]
    before = [pages.clone() for pages in cache]
    targets = torch.randperm(5, generator=generator, device=device)[:rows].int() - 1
    results = triton_layers.norm_and_rotate(
        qkv, Heads(*heads, norms), rotation, KvTargets(cache[0], cache[1], targets) if pages == "some" else None
    )
    for result, exact in zip(results, expected, strict=True):
        assert_rounded_once(result, exact)
    written = targets[targets >= 0].long()
    for after, earlier, new in zip(cache, before, results[1:], strict=True):
        if pages == "some":
            earlier[written] = new[targets >= 0]
        assert torch.equal(after, earlier)

"""The operations of a decoder layer in torch: on the CPU without gradients they are fewer, with the same numbers."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from service.model import layer_ops, layers
from service.model.layer_ops import HeadNorms, Heads, Rotation

EPS = 1e-6


@pytest.mark.parametrize("width", [32, 64, 1024])
@torch.inference_mode()
def test_a_norm_has_torchs_bits_if_its_width_is_a_power_of_two(width: int) -> None:
    for tokens in (1, 3, 16, 300):
        x, norm = 7 * torch.randn(2, tokens, width), nn.RMSNorm(width, eps=EPS)
        norm.weight.copy_(torch.randn(width))
        assert torch.equal(layer_ops.rms_norm(x, norm), norm(x))


@pytest.mark.parametrize("width", [48, 2560])
@torch.inference_mode()
def test_a_norm_of_another_width_has_torchs_numbers(width: int) -> None:
    x, norm = torch.randn(5, width), nn.RMSNorm(width, eps=EPS)
    torch.testing.assert_close(layer_ops.rms_norm(x, norm), norm(x), rtol=3e-7, atol=0)


@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_heads_and_swiglu_are_the_same_with_gradients_and_without(dtype: torch.dtype, normed: bool) -> None:
    qkv, gate_up = torch.randn(2, 3, 8, 16).to(dtype), torch.randn(2, 3, 40).to(dtype)
    weights, angles = torch.randn(2, 16).to(dtype), torch.randn(2, 2, 3, 1, 16).to(dtype)
    heads, rotation = Heads(4, 2, HeadNorms(*weights, EPS) if normed else None), Rotation(*angles)
    by_gradient = *layer_ops.norm_and_rotate(qkv, heads, rotation), layers.silu_and_mul(gate_up)
    before = qkv.clone(), gate_up.clone()
    with torch.inference_mode():
        results = *layer_ops.norm_and_rotate(qkv, heads, rotation), layers.silu_and_mul(gate_up)
    assert all(map(torch.equal, results, by_gradient))
    assert all(map(torch.equal, (qkv, gate_up), before))


def test_gradients_pass_through_the_operations() -> None:
    """In double precision, against differences."""
    x, change = (torch.randn(2, 6, dtype=torch.float64, requires_grad=True) for _ in range(2))
    norm = nn.RMSNorm(6, eps=EPS).double()
    assert torch.autograd.gradcheck(lambda x, change: layers.add_norm(x, change, norm), (x, change))
    assert torch.autograd.gradcheck(layers.silu_and_mul, (x,))


def test_torchs_operations_serve_the_cpu() -> None:
    x, change, norm = torch.randn(2, 3), torch.randn(2, 3), nn.RMSNorm(3, eps=EPS)
    before = x.clone()
    normed, total = layers.add_norm(x, change, norm)
    assert not layers.by_kernel(x)
    assert torch.equal(x, before)
    assert torch.equal(total, x + change)
    assert torch.equal(normed, F.rms_norm(total, (3,), norm.weight, EPS))

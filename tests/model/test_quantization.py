"""Layers with 8-bit matrices: what is kept, what is computed, and that serving works with them."""

from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from service.decode.modes import MODES, Static
from service.decode.registry import make_mode
from service.engine import Engine, EngineConfig, EngineDeps, GenerationRequest
from service.errors import CheckpointError, SettingsError
from service.model import LoadOptions, load_checkpoint, published_weights
from service.model.checkpoint import weight_bytes
from service.model.config import Shard
from service.model.quantization import triton_matmul
from service.model.quantization.layers import (
    QuantizedExperts,
    QuantizedLinear,
    QuantizedTensor,
    kernel_product,
    product,
    quantize_activations,
    quantized,
)
from service.model.quantization.schemes import QUANT_SCHEMES, QuantScheme, is_quantized, scheme_named
from tests.engine.helpers import CHEAP_ROWS
from tests.tiny import DIFFCODER_NAME, EXPERTS_NAME, FAST_DLLM_NAME, GOLDEN, GOLDEN_NAMES, I_DLM_NAME

EVERY_SCHEME = pytest.mark.parametrize("scheme", QUANT_SCHEMES.values(), ids=QUANT_SCHEMES)


def drawn(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def made(scheme: QuantScheme, weight: torch.Tensor) -> QuantizedLinear:
    return QuantizedLinear(quantized(weight, scheme), scheme)


def rounded(rows: torch.Tensor, scheme: QuantScheme) -> torch.Tensor:
    """Activations `[..., K]` in float64, as a product of the scheme has them."""
    values, scales = quantize_activations(rows.flatten(0, -2), scheme)
    return (values.view(getattr(torch, scheme.dtype)).double() * scales.double()).view(rows.shape)


@EVERY_SCHEME
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_number_is_the_nearest_under_its_rows_scale(scheme, dtype):
    weight = drawn(0, 24, 40, dtype=dtype) * torch.logspace(-3, 2, 24)[:, None].to(dtype)
    values, scales = quantized(weight, scheme)
    numbers = values.view(getattr(torch, scheme.dtype)).double()
    shares = weight.double() / scales.double()
    step = 1.0 if scheme.dtype == "int8" else numbers.abs().clamp(min=2**-6) * 2**-3
    # A share beyond the largest number is cut: the scale is rounded, so by half of its last place at most.
    slack = 0.01 * scheme.largest if dtype == torch.bfloat16 else 1e-3
    assert (
        (numbers - shares).abs() <= torch.where(shares.abs() > scheme.largest, slack, 0.51 * torch.as_tensor(step))
    ).all()


@EVERY_SCHEME
def test_a_row_of_zeros_stays_one(scheme):
    values, scales = quantized(torch.zeros(3, 8), scheme)
    assert not values.any()
    assert torch.isfinite(scales).all()


@EVERY_SCHEME
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@settings(max_examples=20)
@given(rows=st.integers(1, 40), depth=st.integers(1, 8), width=st.integers(1, 70), seed=st.integers(0, 9))
def test_the_product_is_that_of_the_widened_matrix(scheme, dtype, rows, depth, width, seed):
    layer = made(scheme, drawn(seed, width, 16 * depth, dtype=dtype))
    x = drawn(seed + 1, 2, rows, 16 * depth, dtype=dtype)
    wanted = F.linear(rounded(x, scheme), layer.tensor.numbers(scheme).double()) * layer.scales.double()[:, 0]
    close = 2e-2 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(layer(x).double(), wanted, rtol=close, atol=close * wanted.abs().max().item())


@EVERY_SCHEME
@pytest.mark.parametrize("depth", [8, 33, 72, 100])
def test_a_product_may_have_any_number_of_columns(scheme, depth):
    layer, x = made(scheme, drawn(0, 24, depth, dtype=torch.bfloat16)), drawn(1, 4, depth, dtype=torch.bfloat16)
    expected = F.linear(rounded(x, scheme), layer.weight.double())
    assert (layer(x).double() - expected).abs().max() <= 0.03 * expected.abs().max()


def test_with_8_bit_activations_a_row_is_the_same_to_the_bit_in_any_batch():
    layer = made(QUANT_SCHEMES["w8a8"], drawn(0, 33, 64, dtype=torch.bfloat16))
    rows = drawn(1, 70, 64, dtype=torch.bfloat16)
    together = layer(rows)
    assert all(torch.equal(layer(rows[n : n + 1])[0], together[n]) for n in range(70))
    assert torch.equal(layer(rows * 0), torch.zeros(70, 33, dtype=torch.bfloat16))


@EVERY_SCHEME
@pytest.mark.parametrize("name", [GOLDEN_NAMES[0], EXPERTS_NAME, DIFFCODER_NAME, FAST_DLLM_NAME, I_DLM_NAME])
def test_a_checkpoint_keeps_no_wide_matrix_of_a_layer(scheme, name):
    whole = load_checkpoint(GOLDEN / name)
    small = load_checkpoint(GOLDEN / name, LoadOptions(quantization=scheme.name))
    tensors: list[torch.Tensor] = []
    for module, original in zip(small.networks, whole.networks, strict=True):
        kinds = (QuantizedLinear, QuantizedExperts)
        parts = {part: layer for part, layer in module.named_modules() if isinstance(layer, kinds)}
        weights = ((part, weight) for part, weight in original.named_parameters() if is_quantized(part))
        wide = {part.removesuffix(".weight"): weight for part, weight in weights}
        assert parts.keys() == wide.keys()
        for part, layer in parts.items():
            assert layer.weight.dtype == torch.float32
            torch.testing.assert_close(layer.weight, wide[part], rtol=0.07, atol=0.02 * wide[part].abs().max().item())
        tensors += [tensor for layer in parts.values() for tensor in layer.buffers()]
        tensors += module.parameters()
    size = weight_bytes(small.config, small.dtype)
    assert sum(tensor.nbytes for tensor in tensors) == size < weight_bytes(whole.config, whole.dtype)


@EVERY_SCHEME
@torch.inference_mode()
def test_experts_answer_as_their_widened_matrices_do_either_way(scheme):
    """Over their own tokens, and over all."""
    mlp = load_checkpoint(GOLDEN / EXPERTS_NAME, LoadOptions(quantization=scheme.name)).backbone.layers[1].mlp
    wide = deepcopy(mlp)
    for name in ("gate_up_proj", "down_proj"):
        weight = getattr(wide.experts, name).weight
        delattr(wide.experts, name)
        setattr(wide.experts, name, nn.Parameter(weight))
    x, close = drawn(3, 1, 21, 64), {"w8a8": 0.03, "fp8": 0.1}[scheme.name]
    for fixed_shapes in (False, True):
        wanted = wide(x, fixed_shapes)
        torch.testing.assert_close(mlp(x, fixed_shapes), wanted, rtol=close, atol=close * wanted.abs().max().item())


@pytest.mark.parametrize("name", [GOLDEN_NAMES[0], EXPERTS_NAME, DIFFCODER_NAME, FAST_DLLM_NAME, I_DLM_NAME])
@pytest.mark.parametrize("scheme", ["w8a8", "fp8"])
def test_ranks_have_the_numbers_of_one_device(scheme, name):
    """A row's scale is that of the whole row, where a rank has a part of it, too."""
    whole = load_checkpoint(GOLDEN / name, LoadOptions(quantization=scheme)).networks
    options = [LoadOptions(quantization=scheme, shard=Shard(rank, 2)) for rank in (0, 1)]
    ranks = [load_checkpoint(GOLDEN / name, option).networks for option in options]
    for number, module in enumerate(whole):
        for part, layer in module.named_modules():
            if part.endswith(("o_proj", "down_proj")):
                pieces = [rank[number].get_submodule(part) for rank in ranks]
                assert torch.equal(torch.cat([piece.values for piece in pieces], -1), layer.values)
                assert all(torch.equal(piece.scales, layer.scales) for piece in pieces)


def test_a_checkpoint_in_8_bits_is_not_written_again():
    small = load_checkpoint(GOLDEN / GOLDEN_NAMES[0], LoadOptions(quantization="w8a8"))
    with pytest.raises(CheckpointError, match=r"in 8 bits \(w8a8\), weights are written wide only"):
        published_weights(small.config, small.backbone, small.mrp)


@EVERY_SCHEME
def test_every_mode_decodes_and_drafting_loses_nothing(scheme):
    checkpoint = load_checkpoint(GOLDEN / GOLDEN_NAMES[0], LoadOptions(quantization=scheme.name))
    engine = Engine(checkpoint, EngineConfig(), deps=EngineDeps(costs=CHEAP_ROWS))
    prompt = tuple(range(5, 18))
    requests = [GenerationRequest(mode, prompt, make_mode(mode, {}), max_new_tokens=24) for mode in MODES]
    done = {completion.request_id: completion.token_ids for completion in engine.generate(requests)}
    assert set(done) == set(MODES)
    assert all(len(tokens) > 0 for tokens in done.values())
    [alone] = Engine(checkpoint, EngineConfig()).generate([GenerationRequest("x", prompt, Static(), max_new_tokens=24)])
    assert done["speculative"] == done["static"] == alone.token_ids


@EVERY_SCHEME
def test_experts_decode_alone_as_together(scheme):
    checkpoint = load_checkpoint(GOLDEN / EXPERTS_NAME, LoadOptions(quantization=scheme.name))
    requests = [GenerationRequest(str(n), tuple(range(n, n + 9)), Static(), max_new_tokens=8) for n in (1, 40, 200)]
    engine = Engine(checkpoint, EngineConfig(deterministic=True))
    together = [done.token_ids for done in engine.generate(requests)]
    assert together == [engine.generate([request])[0].token_ids for request in requests]


def test_other_forms_are_refused():
    with pytest.raises(SettingsError, match=r"quantization is 'int8', allowed are 'fp8', 'w8a8'"):
        scheme_named("int8")


@EVERY_SCHEME
@settings(max_examples=4)
@given(count=st.sampled_from([1, 16, 30, 64, 130]), depth=st.integers(1, 300), width=st.integers(1, 140),
       seed=st.integers(0, 9))  # fmt: skip
def test_the_kernel_is_that_product(triton_device, scheme, count, depth, width, seed):
    layer = made(scheme, drawn(seed, width, depth, dtype=torch.bfloat16)).to(triton_device)
    assert_kernel_is_product(layer, drawn(seed + 1, count, depth, dtype=torch.bfloat16).to(triton_device), scheme)


def test_with_8_bit_activations_the_kernel_has_torchs_bits_whatever_the_tiles(triton_device):
    scheme = QUANT_SCHEMES["w8a8"]
    layer, rows = made(scheme, drawn(0, 40, 1100)), drawn(1, 66, 1100)
    expected = layer(rows)
    values, scales, rows = layer.values.to(triton_device), layer.scales.to(triton_device), rows.to(triton_device)
    for count in (1, 20, 66):
        assert torch.equal(triton_matmul.product(rows[:count], values, scales).cpu(), expected[:count])


def assert_kernel_is_product(layer: QuantizedLinear, rows: torch.Tensor, scheme: QuantScheme) -> None:
    values = layer.values.view(getattr(torch, scheme.dtype))
    done = triton_matmul.product(rows, values, layer.scales).double()
    expected = F.linear(rounded(rows, scheme), values.double()) * layer.scales.double()[:, 0]
    torch.testing.assert_close(done, expected, rtol=1e-2, atol=1e-3 * expected.abs().max().item())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@EVERY_SCHEME
def test_the_kernel_quantizes_activations_as_torch_does(triton_device, scheme, dtype):
    rows = (drawn(0, 90, 300) * torch.logspace(-6, 3, 90)[:, None]).to(dtype).to(triton_device)
    rows[3], rows[4, 7] = 0.0, 500.0
    values, scales = triton_matmul.quantize(rows, getattr(torch, scheme.dtype))
    expected = quantize_activations(rows, scheme)
    assert torch.equal(values.view(torch.int8), expected.values)
    assert torch.equal(scales, expected.scales[:, 0])


def test_every_e4m3_number_is_widened_on_a_cpu_as_torch_does_it():
    bits = torch.arange(256).to(torch.uint8).view(torch.int8)[None]
    numbers = bits.view(torch.float8_e4m3fn)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        ours = QuantizedTensor(bits, torch.ones(1, 1, dtype=dtype)).numbers(QUANT_SCHEMES["fp8"])
        finite = ~numbers.float().isnan()
        assert torch.equal(ours[finite], numbers.to(dtype)[finite])


@pytest.mark.parametrize("rows", [3, 20])
def test_a_row_may_have_several_scales(rows):
    scheme = QUANT_SCHEMES["fp8"]
    bits = QuantizedTensor(quantized(drawn(0, 24, 96), scheme).values, drawn(1, 24, 3).abs())
    wanted = rounded(drawn(2, rows, 96), scheme) @ bits.dequantized(scheme).double().T
    torch.testing.assert_close(product(drawn(2, rows, 96), bits, scheme).double(), wanted, rtol=1e-5, atol=1e-4)
    parts = bits.numbers(scheme).unflatten(1, (3, 32)) * bits.scales[..., None]
    assert torch.equal(bits.dequantized(scheme), parts.flatten(1))


#: numbers of rows for each size of a tile, also those that fill none
ROW_COUNTS = (1, 16, 17, 40, 150, 300)


@pytest.mark.parametrize(("weights", "groups"), [("bfloat16", 1), ("w8a8", 1), ("fp8", 1), ("fp8", 3)])
def test_a_rows_bits_depend_neither_on_the_number_of_rows_nor_on_tiles(triton_device, monkeypatch, weights, groups):
    scheme, width, depth = QUANT_SCHEMES.get(weights), 70, 576
    values, scales = drawn(0, width, depth, dtype=torch.bfloat16), None
    if scheme is not None:
        values = quantized(values, scheme).values.view(getattr(torch, scheme.dtype))
        scales = drawn(1, width, groups, dtype=torch.bfloat16).to(triton_device)
    rows, values = drawn(2, 300, depth, dtype=torch.bfloat16).to(triton_device), values.to(triton_device)
    numbers = rows if scheme is None else values
    if scheme is not None:
        once = triton_matmul.quantize(rows, values.dtype)
        monkeypatch.setattr(triton_matmul, "quantize", lambda rows, _: tuple(part[: len(rows)] for part in once))
    together = triton_matmul.product(rows, values, scales)
    tilings = triton_matmul.tilings_of(numbers, groups)
    for tiling in tilings:
        monkeypatch.setattr(triton_matmul, "tilings_of", lambda *_, only=tiling: (only,))
        for count in ROW_COUNTS if tiling == tilings[0] else (1, 300):
            done = triton_matmul.product(rows[:count], values, scales)
            assert torch.equal(done, together[:count]), (tiling, count)


@pytest.mark.parametrize(("name", "groups"), [("w8a8", 1), ("fp8", 1), ("fp8", 3)])
def test_an_experts_rows_have_the_bits_of_its_own_product(triton_device, name, groups):
    scheme = QUANT_SCHEMES[name]
    values = quantized(drawn(0, 4 * 40, 192), scheme).values.view(4, 40, 192)
    layer = QuantizedExperts(QuantizedTensor(values, drawn(1, 4, 40, groups, dtype=torch.bfloat16)), scheme).to(
        triton_device
    )
    rows = drawn(2, 100, 192, dtype=torch.bfloat16).to(triton_device)
    ends = torch.tensor([3, 3, 60, 100], dtype=torch.int32, device=triton_device)
    done = kernel_product(rows, layer.tensor, scheme, ends)
    for expert, start, stop in ((0, 0, 3), (2, 3, 60), (3, 60, 100)):
        alone = QuantizedTensor(layer.values[expert], layer.scales[expert])
        assert torch.equal(done[start:stop], kernel_product(rows[start:stop], alone, scheme))


@EVERY_SCHEME
@pytest.mark.parametrize(("count", "groups"), [(1, 1), (13, 3), (80, 1), (300, 1)])
def test_the_kernel_of_experts_is_that_product(triton_device, scheme, count, groups):
    """Some experts have no rows, the last has most."""
    groups = 1 if scheme.name == "w8a8" else groups
    values = quantized(drawn(0, 4 * 40, 96), scheme).values.view(4, 40, 96)
    layer = QuantizedExperts(QuantizedTensor(values, drawn(1, 4, 40, groups, dtype=torch.bfloat16)), scheme).to(
        triton_device
    )
    rows = drawn(2, count, 96, dtype=torch.bfloat16).to(triton_device)
    ends = torch.tensor([0, count // 4, count // 4, count], dtype=torch.int32, device=triton_device)
    second, last = rounded(rows, scheme).split([count // 4, count - count // 4])
    wanted = torch.cat([second @ layer.weight[1].double().T, last @ layer.weight[3].double().T])
    done = kernel_product(rows, layer.tensor, scheme, ends).double()
    torch.testing.assert_close(done, wanted, rtol=2e-2, atol=1e-2 * wanted.abs().max().item())


@pytest.mark.parametrize(("scheme", "parts"), [(None, 1), ("fp8", 2), ("w8a8", 2)])
def test_ranks_divide_activations_that_become_8_bits(scheme, parts):
    options = LoadOptions(quantization=scheme, shard=Shard(0, 2))
    assert load_checkpoint(GOLDEN / EXPERTS_NAME, options).activation_parts == parts

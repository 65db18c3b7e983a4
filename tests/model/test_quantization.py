"""Layers with 8-bit matrices: what is kept, what is computed, and that serving works with them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from service.decode.modes import MODES, Static
from service.decode.registry import make_params
from service.demo import CHECKPOINT
from service.engine import Engine, EngineConfig, GenerationRequest, Parts
from service.errors import SettingsError
from service.model import LoadOptions, load_checkpoint
from service.model.checkpoint import weight_bytes
from service.model.quantization import FORMS, QUANTIZED, form_named
from service.model.quantization.linear import QuantizedLinear, quantized
from service.quality.identity import identity_of
from service.quality.presets import presets_of
from tests.engine.helpers import FAIR
from tests.tiny import EXPERTS_NAME, GOLDEN, GOLDEN_NAMES

EVERY_FORM = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def drawn(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@EVERY_FORM
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_number_is_the_nearest_under_its_rows_scale(form, dtype):
    weight = drawn(0, 24, 40, dtype=dtype) * torch.logspace(-3, 2, 24)[:, None].to(dtype)
    values, scales = quantized(weight, form)
    kept = values.view(getattr(torch, form.dtype)).double()
    shares = weight.double() / scales.double()[:, None]
    step = 1.0 if form.dtype == "int8" else kept.abs().clamp(min=2**-6) * 2**-3
    # A share beyond the largest number is cut: the scale is rounded, so by half of its last place at most.
    slack = 0.01 * form.largest if dtype == torch.bfloat16 else 1e-3
    assert (
        (kept - shares).abs() <= torch.where(shares.abs() > form.largest, slack, 0.51 * torch.as_tensor(step))
    ).all()


@EVERY_FORM
def test_a_row_of_zeros_stays_one(form):
    values, scales = quantized(torch.zeros(3, 8), form)
    assert not values.any()
    assert torch.isfinite(scales).all()


@EVERY_FORM
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@settings(max_examples=20)
@given(rows=st.integers(1, 40), depth=st.integers(1, 8), width=st.integers(1, 70), seed=st.integers(0, 9))
def test_the_product_is_that_of_the_widened_matrix(form, dtype, rows, depth, width, seed):
    layer = QuantizedLinear(drawn(seed, width, 16 * depth, dtype=dtype), form)
    x = drawn(seed + 1, 2, rows, 16 * depth, dtype=dtype)
    wanted = F.linear(x.double(), layer.values.view(getattr(torch, form.dtype)).double()) * layer.scales.double()
    close = 2e-2 if form.activations or dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(layer(x).double(), wanted, rtol=close, atol=close * wanted.abs().max().item())


def test_with_8_bit_activations_a_row_is_the_same_to_the_bit_in_any_batch():
    layer = QuantizedLinear(drawn(0, 33, 64, dtype=torch.bfloat16), FORMS["w8a8"])
    rows = drawn(1, 70, 64, dtype=torch.bfloat16)
    together = layer(rows)
    assert all(torch.equal(layer(rows[n : n + 1])[0], together[n]) for n in range(70))
    assert torch.equal(layer(rows * 0), torch.zeros(70, 33, dtype=torch.bfloat16))


@EVERY_FORM
def test_another_type_changes_scales_alone(form):
    layer = QuantizedLinear(drawn(0, 8, 16), form)
    bits = layer.values.clone()
    layer.to(torch.bfloat16)
    assert torch.equal(layer.values, bits)
    assert layer.scales.dtype == torch.bfloat16


@EVERY_FORM
@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_a_checkpoint_keeps_no_wide_matrix_of_a_layer(form, name):
    whole = load_checkpoint(GOLDEN / name)
    small = load_checkpoint(GOLDEN / name, LoadOptions(quantization=form.name))
    kept: list[torch.Tensor] = []
    for module, original in ((small.backbone, whole.backbone), (small.mrp, whole.mrp)):
        parts = dict(module.named_modules())
        linear = {part for part, layer in original.named_modules() if isinstance(layer, nn.Linear)}
        replaced = {part for part, layer in parts.items() if isinstance(layer, QuantizedLinear)}
        assert replaced == {part for part in linear if part.rpartition(".")[2] in QUANTIZED}
        assert linear - replaced <= {"lm_head"}
        for part in replaced:
            assert parts[part].weight.dtype == torch.float32
            near = original.get_submodule(part).weight
            torch.testing.assert_close(parts[part].weight, near, rtol=0.07, atol=0.02 * near.abs().max().item())
        kept += [tensor for layer in parts.values() if isinstance(layer, QuantizedLinear) for tensor in layer.buffers()]
        kept += module.parameters()
    size = weight_bytes(small.config, small.dtype)
    assert sum(tensor.nbytes for tensor in kept) == size < weight_bytes(whole.config, whole.dtype)


@EVERY_FORM
def test_every_mode_decodes_and_drafting_loses_nothing(form):
    checkpoint = load_checkpoint(GOLDEN / GOLDEN_NAMES[0], LoadOptions(quantization=form.name))
    engine = Engine(checkpoint, EngineConfig(), parts=Parts(costs=FAIR))
    prompt = tuple(range(5, 18))
    asked = [GenerationRequest(mode, prompt, make_params(mode, {}), max_new_tokens=24) for mode in MODES]
    done = {one.request_id: one.token_ids for one in engine.generate(asked)}
    assert set(done) == set(MODES)
    assert all(len(tokens) > 0 for tokens in done.values())
    [alone] = Engine(checkpoint, EngineConfig()).generate([GenerationRequest("x", prompt, Static(), max_new_tokens=24)])
    assert done["speculative"] == done["static"] == alone.token_ids


def test_experts_are_refused():
    with pytest.raises(SettingsError, match=r"'int8', but this checkpoint has experts"):
        load_checkpoint(GOLDEN / EXPERTS_NAME, LoadOptions(quantization="int8"))


def test_other_forms_are_refused():
    with pytest.raises(SettingsError, match=r"quantization is 'int3', allowed are 'int8', 'fp8', 'w8a8'"):
        form_named("int3")


def test_a_calibration_of_the_wide_weights_is_another_checkpoints():
    folder = Path(GOLDEN / GOLDEN_NAMES[0])
    wide, small = (load_checkpoint(folder, LoadOptions(quantization=name)) for name in (None, "int8"))
    assert identity_of(folder, wide.config) != identity_of(folder, small.config)
    assert "balanced" in presets_of(CHECKPOINT, load_checkpoint(CHECKPOINT).config).plans
    small = load_checkpoint(CHECKPOINT, LoadOptions(quantization="int8"))
    presets = presets_of(CHECKPOINT, small.config)
    assert list(presets.plans) == ["lossless"]
    assert "has no quality.int8.json" in str(presets.missing)
    presets = presets_of(CHECKPOINT, small.config, CHECKPOINT / "quality.json")
    assert list(presets.plans) == ["lossless"]
    assert "(quantization differ)" in str(presets.missing)


@pytest.mark.parametrize("form", [FORMS["int8"], FORMS["fp8"]], ids=["int8", "fp8"])
@settings(max_examples=8)
@given(count=st.integers(1, 40), depth=st.integers(1, 300), width=st.integers(1, 70), seed=st.integers(0, 9))
def test_the_kernel_is_that_product(triton_device, form, count, depth, width, seed):
    from service.model.quantization.kernels import product

    layer = QuantizedLinear(drawn(seed, width, depth, dtype=torch.bfloat16), form).to(triton_device)
    rows = drawn(seed + 1, count, depth, dtype=torch.bfloat16).to(triton_device)
    values = layer.values.view(getattr(torch, form.dtype))
    wanted = F.linear(rows.double(), values.double()) * layer.scales.double()
    made = product(rows, values, layer.scales).double()
    torch.testing.assert_close(made, wanted, rtol=1e-2, atol=1e-2 * wanted.abs().max().item())
